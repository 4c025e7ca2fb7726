#pragma once
#include <vector>

namespace tandem {

/// One logical CPU of each physical core that this process was given, rising, neighbours in a core
/// left out. As it was at the first call: threads that are bound later change nothing.
const std::vector<int>& core_cpus();

/// While it lives, the threads that share the loops of the calling thread (base/parallel.h) are
/// bound to a core each, so that none is moved in the midst of work or waits for another. The
/// calling thread, which has the core left over, keeps all its CPUs, for threads that it starts
/// inherit them. Nothing is bound where one thread does all or there are more threads than cores.
class BoundThreads {
 public:
  BoundThreads();
  /// By the thread that made it.
  ~BoundThreads();
  BoundThreads(const BoundThreads&) = delete;
  BoundThreads& operator=(const BoundThreads&) = delete;

  bool bound() const { return n_threads_ > 0; }

 private:
  int n_threads_ = 0;  // that are bound, the calling one counted
};

}  // namespace tandem

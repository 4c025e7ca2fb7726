#pragma once
#include <functional>
#include <string>
#include <vector>

namespace tandem::ranks {

/// The other ranks of a run that one command starts on this machine: processes of this program with
/// its arguments and some more. They die with this process, and it waits for their end.
class Spawned {
 public:
  Spawned() = default;
  /// Starts ranks 1 to size - 1.
  /// more     what stands before the arguments of a rank
  /// errors   kind device: the system starts no more processes
  Spawned(int size, const std::function<std::vector<std::string>(int rank)>& more);
  ~Spawned();
  Spawned(const Spawned&) = delete;
  Spawned& operator=(const Spawned&) = delete;

 private:
  std::vector<int> processes_;
};

}  // namespace tandem::ranks

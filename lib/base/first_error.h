#pragma once
#include <atomic>
#include <exception>
#include <mutex>

namespace tandem {

/// The first exception of several threads that work together, for the one that waits for them:
/// none may leave a parallel region.
class FirstError {
 public:
  /// Runs `body`, unless one has failed already; keeps what it throws.
  template <class Body>
  void run(const Body& body) noexcept {
    if (failed()) return;
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws it, if there is one; once all threads are done.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

}  // namespace tandem

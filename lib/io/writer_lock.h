#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "base/interrupt.h"

namespace tandem::io {

/// Returns the name of this machine; "this host" if the system gives none.
std::string host_name();

/// Keeps others from writing a file or a folder for as long as it lives. It is the system's lock on
/// a file `NAME.lock` next to the target, which says who holds it: not on the target, which a
/// writer may bring into being or replace at the end of its work. The system gives it up when the
/// process dies, however it does; a lock file that is left then stops no other. A file of that name
/// that says nothing of a holder is not the program's own: it is never written, nor removed.
class WriterLock {
 public:
  /// What to do where another process has it.
  struct Waiting {
    bool waits = false;                                     // until it is free; else an error
    std::function<void(const std::string& who)> note = {};  // called once if it has to wait
    Interrupted interrupted = {};
  };
  /// target   need not be there; links are followed
  /// errors   kind input: another process writes there, and which; NAME.lock is something else; kind
  ///          interrupted
  WriterLock(const std::filesystem::path& target, const Waiting& waiting);
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// Why others cannot be kept from the target; empty where they are.
  const std::string& why_open() const { return why_open_; }

 private:
  /// Whether the search for a lock has ended: with it, or with why there is none.
  bool try_lock();
  int create() const;
  bool is_named() const;
  void sign(int fd) const;
  std::string holder() const;
  [[noreturn]] void refuse() const;

  std::filesystem::path target_, path_;
  std::string why_open_;
  int fd_ = -1;
  bool is_own_ = false;  // what the file says of its holder is this program's
};

}  // namespace tandem::io

#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ranks/group.h"
#include "ranks/launch.h"

namespace tandem::decode {

/// Shows how much of long work is done.
class ProgressLine {
 public:
  virtual ~ProgressLine() = default;
  /// details   stand before the rate
  virtual void update(double /*done*/, const std::vector<std::string>& /*details*/ = {}) {}
  /// update; false once the run is to end. Several ranks agree: all call it at the same steps.
  virtual bool go_on(double done) {
    update(done);
    return true;
  }
};

/// The run that an engine, a plan or a trainer works for: its ranks, its messages, its end. A tool
/// prints the messages (cli::Context); this class alone shows nothing and is never interrupted.
class RunContext {
 public:
  virtual ~RunContext() = default;

  /// True if the run is only planned, perhaps for a GPU that is not here.
  virtual bool dry_run() const { return false; }
  /// Returns this process's place among the ranks of its run.
  virtual const ranks::Place& place() const {
    static const ranks::Place alone;
    return alone;
  }
  /// The other ranks; null where there are none, and for plans.
  virtual const std::shared_ptr<ranks::Group>& group() const {
    static const std::shared_ptr<ranks::Group> none;
    return none;
  }

  /// Shows a text from a verbosity on: 0 normal, 1 verbose, 2 debug.
  virtual void show(std::string_view /*text*/, int /*verbosity*/) const {}
  /// Shows a text at verbosity 0, once.
  virtual void note_once(const std::string& /*text*/) const {}
  virtual void warn(const std::string& /*text*/) const {}
  /// Writes a line of the result.
  virtual void print(std::string_view /*line*/) const {}
  void note(std::string_view text) const { show(text, 0); }
  void verbose(std::string_view text) const { show(text, 1); }
  void debug(std::string_view text) const { show(text, 2); }
  /// Begins a line of progress.
  /// begun   done before this process, which says nothing of its rate
  virtual std::unique_ptr<ProgressLine> progress(std::string /*label*/, double /*total*/,
                                                 std::string /*unit*/, double /*begun*/ = 0) const {
    return std::make_unique<ProgressLine>();
  }

  /// True once a signal has asked this process for an end.
  virtual bool signalled() const { return false; }
  /// Returns signalled(); with several ranks, true once they have agreed on it.
  virtual bool is_interrupted() const { return false; }
  /// is_interrupted at the end of a step, where several ranks agree, all at the same steps.
  virtual bool agree_interrupted() const { return false; }
};

}  // namespace tandem::decode

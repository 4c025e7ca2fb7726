#pragma once

namespace tandem::cli {

/// Catches SIGINT and SIGTERM: the first sets a flag that steps poll and says so on stderr, the
/// second ends the process at once. SIGPIPE is ignored; writes report it instead.
void install_signal_handlers();

/// The signal that asked for an end (SIGINT or SIGTERM), or 0. Loops poll it between steps.
int interrupted();
/// Whether there was one.
inline bool is_interrupted() { return interrupted() != 0; }

/// Thrown when the reader of standard output is gone. Not an std::exception: nothing but
/// main_wrapper should stop it.
struct BrokenPipe {};

/// Ends the process the way SIGPIPE would have.
[[noreturn]] void die_of_broken_pipe();

}  // namespace tandem::cli

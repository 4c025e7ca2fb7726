#pragma once
#include <functional>

namespace tandem::cli {

/// Catches SIGINT, SIGTERM, SIGHUP (unless it is ignored) and SIGXCPU: the first sets a flag that
/// steps poll and says so on stderr, the second ends the process at once. SIGPIPE and SIGXFSZ are
/// ignored; writes report them instead.
void install_signal_handlers();

/// Notes for the signal handler if a progress line is shown: the first signal clears it, so
/// that the terminal's ^C does not stand inside it.
void clear_when_interrupted(bool line_shown);
/// Returns true if the handler has written to stderr since the last call; its text ends a line.
bool answered();

/// The signal that asked for an end, or 0. Loops poll it between steps.
int interrupted();
/// While on, SIGINT ends an answer and not the run: it sets the flag, as often as it comes, and
/// only clears a progress line.
void sigint_ends_answer(bool on);
/// Clears the flag if SIGINT has set it; true if it had.
bool take_sigint();
/// Whether there was one. Of several ranks, whether they have agreed that there was one anywhere.
bool is_interrupted();

/// Of several ranks: how they agree. Empty: the run has one.
void agree_by(std::function<bool()> agree);
/// is_interrupted at the end of a step: several ranks agree here, all of them at the same steps.
bool agree_interrupted();

/// Thrown when the reader of standard output is gone. Not an std::exception: nothing but
/// main_wrapper should stop it.
struct BrokenPipe {};

/// Ends the process the way SIGPIPE would have.
[[noreturn]] void die_of_broken_pipe();

}  // namespace tandem::cli

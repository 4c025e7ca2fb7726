#pragma once
#include <filesystem>

namespace tandem::io {

/// No run may put its result in place of a file that it reads: the outputs that a process claims
/// and the files that it opens to read are compared by device and inode, so that names do not
/// matter.

/// Says that the process will write this file. One that is not there yet collides with nothing.
/// errors   kind usage: the process has read it
void claim_output(const std::filesystem::path& path);

/// Called wherever an input is opened.
/// errors   kind usage: the process has claimed it as its output
void note_input(const std::filesystem::path& path, int fd);

}  // namespace tandem::io

#pragma once
#include <functional>

#include "cli/context.h"

namespace tandem::cli {

/// Ends a tool early with a status, as after --print-recipe. Not an std::exception, so that only
/// main_wrapper catches it.
struct EarlyExit {
  int status;
};

/// The frame of every tool: parses the command line, serves help and version, installs the signal
/// handlers, reads TANDEM_ISA and TANDEM_GPU_ISA, runs `body`, and turns every exception into one
/// message and the exit status of its kind. Returns what main() should.
int main_wrapper(const ToolInfo& info, int argc, char** argv,
                 const std::function<int(Context&)>& body);

}  // namespace tandem::cli

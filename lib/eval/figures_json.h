#pragma once
#include <string>

#include "eval/corrected.h"
#include "eval/reads.h"
#include "io/json_fwd.h"

// Figures of steps and rounds, as logs and records of cases give them.
namespace tandem::eval {

io::Json reads_json(const Reads& reads);
/// errors   kind input at `where`
Reads read_reads(const io::Json& json, const std::string& where);

io::Json rounds_json(const RoundCounts& rounds);
/// errors   kind input at `where`
RoundCounts read_rounds(const io::Json& json, const std::string& where);

}  // namespace tandem::eval

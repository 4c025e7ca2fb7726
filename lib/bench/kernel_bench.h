#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "bench/kernel_cases.h"
#include "bench/record.h"
#include "bench/record_view.h"

namespace tandem::bench {

/// A kernel at a shape, checked and timed.
struct KernelResult {
  Samples samples;
  Roofline roofline;
  std::optional<Comparison> baseline;  // a: this kernel, b: the library alone
};

/// Checks the case against its reference, then times it; polls before every run.
/// errors   kind numeric: the kernel and its reference differ; says where; kind interrupted
KernelResult run_kernel_case(const KernelCase& c, const MeasureRules& rules,
                             const machine::Ceilings& ceilings,
                             const Interrupted& interrupted = {});

/// The record of a result, as far as this module knows it.
Record kernel_record(const KernelCase& c, const KernelResult& r, const machine::Ceilings& ceilings);

/// The record of a case that has no result.
Record kernel_record(const KernelCase& c, const machine::Ceilings& ceilings);

/// The table of kernels. "% read" is a share of the memory read rate, "-" where the bytes come
/// faster than that. The row of a failed record says that the kernel differs from its reference.
RecordView kernel_view();
std::vector<std::string> kernel_row(const Json& record);

/// The record of limits that were measured again, and their table.
Record limits_record(const machine::Ceilings& c);
RecordView limits_view();
std::vector<std::string> limits_row(const Json& record);

/// One line that names the rates that shares refer to.
std::string describe(const machine::Ceilings& c);

}  // namespace tandem::bench

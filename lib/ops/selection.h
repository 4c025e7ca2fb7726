#pragma once
#include "kernels/gather/attend_list.h"
#include "kernels/gather/key_votes.h"
#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/sign_project.h"
#include "kernels/signature/sample_tail.h"
#include "kernels/signature/signature.h"

/// Operations of policies that select keys by content, on the CPU; the headers above define them.
/// Each runs on the calling thread, since policies divide their work by sequence and head.
namespace tandem::ops {

void sign_project(const SignProjectParams& params, Range rows);
int hash_probe(const HashProbeParams& params);
void signature_scan(const SignatureScanParams& params, Range keys);
int select_top(const SelectTopParams& params);
void draw_exponentials(const DrawExponentialsParams& params, Range ids);
int sample_tail(const SampleTailParams& params);
void attend_list(const AttendListParams& params);
void key_votes(const KeyVotesParams& params);

}  // namespace tandem::ops

#pragma once
#include <algorithm>

#include "base/cpu_features.h"
#include "kernels/adapter/add_columns.h"
#include "kernels/adapter/dropout.h"
#include "kernels/adapter/grouped_products.h"
#include "kernels/adapter/magnitude.h"
#include "kernels/adapter/weight_norms.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_backward.h"
#include "kernels/attention/mean_lse.h"
#include "kernels/channels/add_squares.h"
#include "kernels/channels/channel_norms.h"
#include "kernels/channels/channel_products.h"
#include "kernels/channels/choose_channels.h"
#include "kernels/channels/gather_columns.h"
#include "kernels/channels/score_channels.h"
#include "kernels/channels/unite_channels.h"
#include "kernels/code/code.h"
#include "kernels/code/tail_means.h"
#include "kernels/embed/convert.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/fill_random.h"
#include "kernels/ffn/gate_mul.h"
#include "kernels/ffn/gate_mul_backward.h"
#include "kernels/gather/attend_list.h"
#include "kernels/gather/copy_keys.h"
#include "kernels/gather/key_votes.h"
#include "kernels/linear/decode_linear.h"
#include "kernels/linear/packed_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/lowbit/coded_pages.h"
#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/sign_project.h"
#include "kernels/norm/column_sums.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/norm/rms_norm_backward.h"
#include "kernels/norm/row_norms.h"
#include "kernels/optim/adamw_narrow.h"
#include "kernels/optim/optim.h"
#include "kernels/page/catch_up.h"
#include "kernels/page/eight_bit_rows.h"
#include "kernels/page/page.h"
#include "kernels/page/query_ring.h"
#include "kernels/probe/probe.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/sample.h"
#include "kernels/sample/slot_ids.h"
#include "kernels/sample/widen_rows.h"
#include "kernels/selection/chunks.h"
#include "kernels/selection/sample_tail.h"
#include "kernels/selection/select_top.h"
#include "kernels/tree/append_round.h"
#include "kernels/tree/draw_children.h"
#include "kernels/tree/grow_beams.h"
#include "kernels/tree/propose_lookup.h"
#include "kernels/tree/verify_trees.h"

namespace tandem {

/// The variant for an ISA from those there are, weakest first.
template <class Variant, size_t kCount>
Variant* variant_for(Isa isa, Variant* const (&variants)[kCount]) {
  return variants[std::min(static_cast<size_t>(isa), kCount - 1)];
}

// An entry: of three variants, of one more that multiplies bf16, and the same for every ISA.
#define TANDEM_VARIANTS(op) \
  decltype(&op##_scalar) op = variant_for(isa, {&op##_scalar, &op##_avx2, &op##_avx512})
#define TANDEM_VARIANTS_BF16(op) \
  decltype(&op##_scalar) op =    \
      variant_for(isa, {&op##_scalar, &op##_avx2, &op##_avx512, &op##_avx512_bf16})
#define TANDEM_SAME(op) decltype(&op##_cpu) op = &op##_cpu

/// The CPU variant of every operation, chosen for one ISA. An entry without a variant for that ISA
/// holds the one of the next weaker; operations that only copy have one for all.
struct CpuTable {
  Isa isa;
  TANDEM_VARIANTS_BF16(rms_norm);
  TANDEM_VARIANTS(qk_squares);
  TANDEM_VARIANTS(row_norms);
  TANDEM_VARIANTS_BF16(rope_kv);
  TANDEM_VARIANTS_BF16(rotate_q);
  TANDEM_VARIANTS_BF16(gate_mul);
  TANDEM_VARIANTS(embed);
  TANDEM_VARIANTS(convert);
  TANDEM_VARIANTS(fill_random);
  TANDEM_VARIANTS(quantize);
  TANDEM_VARIANTS(dequantize);
  TANDEM_VARIANTS(logit_stats);
  TANDEM_VARIANTS(top_n);
  TANDEM_VARIANTS(sample);
  TANDEM_VARIANTS(draw_children);
  TANDEM_VARIANTS(grow_beams);
  TANDEM_VARIANTS(verify_trees);
  TANDEM_VARIANTS(accept_chances);
  TANDEM_VARIANTS(sign_project);
  TANDEM_VARIANTS(hash_probe);
  TANDEM_VARIANTS_BF16(attend_list);
  TANDEM_VARIANTS(key_votes);
  TANDEM_VARIANTS(rotate_rows);
  TANDEM_VARIANTS(rotate_rows_back);
  TANDEM_VARIANTS(code_rows_of_page);
  TANDEM_VARIANTS(widen_coded_rows);
  TANDEM_VARIANTS(prepare_coded_queries);
  TANDEM_VARIANTS_BF16(attend_coded);
  TANDEM_VARIANTS(code_scan);
  TANDEM_VARIANTS(code_refine);
  TANDEM_VARIANTS(tail_masses);
  TANDEM_VARIANTS(cluster_masses);
  TANDEM_VARIANTS(nearest_clusters);
  TANDEM_VARIANTS(add_means);
  TANDEM_VARIANTS(chunk_means);
  TANDEM_VARIANTS(chunk_scores);
  TANDEM_VARIANTS(select_top);
  TANDEM_VARIANTS(select_reached);
  TANDEM_VARIANTS(draw_exponentials);
  TANDEM_VARIANTS(sample_tail);
  TANDEM_VARIANTS(read_probe);
  TANDEM_VARIANTS(fma_probe);
  TANDEM_VARIANTS(narrow_rows);
  TANDEM_VARIANTS(widen_eight_bit_rows);
  TANDEM_SAME(copy_keys);
  TANDEM_SAME(copy_page);
  TANDEM_SAME(move_tokens);
  TANDEM_SAME(path_moves);
  TANDEM_SAME(set_pages);
  TANDEM_SAME(leave_ends);
  TANDEM_SAME(catch_up);
  TANDEM_SAME(append_round);
  TANDEM_SAME(propose_lookup);
  TANDEM_SAME(write_queries);
  TANDEM_SAME(mean_lse);
  TANDEM_SAME(move_queries);
  TANDEM_SAME(load_slot_ids);
  TANDEM_SAME(store_slot_ids);
  TANDEM_SAME(widen_rows);
  TANDEM_VARIANTS(rms_norm_backward);
  TANDEM_VARIANTS(column_sums);
  TANDEM_VARIANTS(row_norms_backward);
  TANDEM_VARIANTS_BF16(rope_backward);
  TANDEM_VARIANTS_BF16(gate_mul_backward);
  TANDEM_VARIANTS(attention_backward);
  TANDEM_VARIANTS_BF16(cross_entropy);
  TANDEM_SAME(gather_columns);
  TANDEM_SAME(unite_channels);
  TANDEM_VARIANTS_BF16(gate_up_channels);
  TANDEM_VARIANTS_BF16(down_channels);
  TANDEM_VARIANTS(square_scales);
  TANDEM_VARIANTS(add_squares);
  TANDEM_SAME(channel_norms);
  TANDEM_VARIANTS(score_channels);
  TANDEM_VARIANTS(choose_channels);
  TANDEM_VARIANTS(channels_above);
  TANDEM_SAME(adamw_narrow);
  TANDEM_VARIANTS(square_sum);
  TANDEM_VARIANTS(adamw);
  TANDEM_VARIANTS_BF16(dropout);
  TANDEM_SAME(add_columns);
  TANDEM_SAME(group_rows);
  TANDEM_VARIANTS_BF16(grouped_dots);
  TANDEM_VARIANTS_BF16(grouped_sums);
  TANDEM_VARIANTS_BF16(magnitude_scale);
  TANDEM_VARIANTS(magnitude_gradient);
  TANDEM_SAME(row_squares);
  TANDEM_SAME(weight_norms);
  TANDEM_VARIANTS(attention_f32);
  const AttentionKernel* attention_bf16 =
      variant_for(isa, {&attention_bf16_scalar, &attention_bf16_avx2, &attention_bf16_avx512,
                        &attention_bf16_avx512_bf16, &attention_bf16_amx});
  TANDEM_VARIANTS(packed_linear);
  const QuantizedLinearKernel* quantized_linear =
      variant_for(isa, {&quantized_linear_scalar, &quantized_linear_avx2, &quantized_linear_avx512,
                        &quantized_linear_avx512_bf16, &quantized_linear_amx});
  // null where the CPU does not multiply bf16
  DecodeLinearFn* decode_linear = isa >= Isa::avx512_bf16 ? decode_linear_avx512_bf16 : nullptr;
};

#undef TANDEM_VARIANTS
#undef TANDEM_VARIANTS_BF16
#undef TANDEM_SAME

/// Table of one ISA; `isa` must not exceed isa_detected().
const CpuTable& cpu_table(Isa isa);
/// Table of the ISA in use.
inline const CpuTable& cpu_table() { return cpu_table(isa_in_use()); }

}  // namespace tandem

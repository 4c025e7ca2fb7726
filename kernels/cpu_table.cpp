#include "kernels/cpu_table.h"

#include <algorithm>
#include <array>

namespace tandem {
namespace {

/// The variant for an ISA from those there are, weakest first.
template <class Fn, size_t kCount>
Fn* pick(Isa isa, Fn* const (&variants)[kCount]) {
  return variants[std::min(static_cast<size_t>(isa), kCount - 1)];
}

#define TANDEM_PICK(op) t.op = pick(isa, {op##_scalar, op##_avx2, op##_avx512})
#define TANDEM_PICK_BF16(op) \
  t.op = pick(isa, {op##_scalar, op##_avx2, op##_avx512, op##_avx512_bf16})

CpuTable make_table(Isa isa) {
  CpuTable t{};
  t.isa = isa;
  TANDEM_PICK_BF16(rms_norm);
  TANDEM_PICK_BF16(rope_kv);
  TANDEM_PICK_BF16(rotate_q);
  TANDEM_PICK_BF16(gate_mul);
  TANDEM_PICK(embed);
  TANDEM_PICK(convert);
  TANDEM_PICK(fill_random);
  TANDEM_PICK(logit_stats);
  TANDEM_PICK(top_n);
  TANDEM_PICK(sample);
  TANDEM_PICK(draw_children);
  TANDEM_PICK(grow_beams);
  TANDEM_PICK(verify_trees);
  TANDEM_PICK(accept_chances);
  TANDEM_PICK(sign_project);
  TANDEM_PICK(hash_probe);
  TANDEM_PICK_BF16(attend_list);
  TANDEM_PICK(key_votes);
  TANDEM_PICK(rotate_rows);
  TANDEM_PICK(code_scan);
  TANDEM_PICK(code_refine);
  TANDEM_PICK(tail_masses);
  TANDEM_PICK(add_means);
  TANDEM_PICK(chunk_means);
  TANDEM_PICK(chunk_scores);
  TANDEM_PICK(select_top);
  TANDEM_PICK(select_reached);
  TANDEM_PICK(draw_exponentials);
  TANDEM_PICK(sample_tail);
  TANDEM_PICK(read_probe);
  TANDEM_PICK(fma_probe);
  TANDEM_PICK(narrow_rows);
  TANDEM_PICK(widen_eight_bit_rows);
  t.copy_keys = copy_keys_cpu;
  t.copy_page = copy_page_cpu;
  t.move_tokens = move_tokens_cpu;
  t.path_moves = path_moves_cpu;
  t.set_pages = set_pages_cpu;
  t.leave_ends = leave_ends_cpu;
  t.catch_up = catch_up_cpu;
  t.append_round = append_round_cpu;
  t.propose_lookup = propose_lookup_cpu;
  t.write_queries = write_queries_cpu;
  t.mean_lse = mean_lse_cpu;
  t.move_queries = move_queries_cpu;
  t.load_slot_ids = load_slot_ids_cpu;
  t.store_slot_ids = store_slot_ids_cpu;
  t.widen_rows = widen_rows_cpu;
  TANDEM_PICK(rms_norm_backward);
  TANDEM_PICK(column_sums);
  TANDEM_PICK_BF16(rope_backward);
  TANDEM_PICK_BF16(gate_mul_backward);
  TANDEM_PICK(attention_backward);
  TANDEM_PICK_BF16(cross_entropy);
  t.gather_columns = gather_columns_cpu;
  t.unite_channels = unite_channels_cpu;
  TANDEM_PICK_BF16(gate_up_channels);
  TANDEM_PICK_BF16(down_channels);
  TANDEM_PICK(square_scales);
  TANDEM_PICK(add_squares);
  t.channel_norms = channel_norms_cpu;
  TANDEM_PICK(score_channels);
  TANDEM_PICK(choose_channels);
  TANDEM_PICK(channels_above);
  t.adamw_narrow = adamw_narrow_cpu;
  TANDEM_PICK(square_sum);
  TANDEM_PICK(adamw);
  TANDEM_PICK_BF16(dropout);
  t.add_columns = add_columns_cpu;
  t.group_rows = group_rows_cpu;
  TANDEM_PICK_BF16(grouped_dots);
  TANDEM_PICK_BF16(grouped_sums);
  TANDEM_PICK_BF16(magnitude_scale);
  TANDEM_PICK(magnitude_gradient);
  t.row_squares = row_squares_cpu;
  t.weight_norms = weight_norms_cpu;
  t.attention_f32 = pick(isa, {&attention_f32_scalar, &attention_f32_avx2, &attention_f32_avx512});
  t.attention_bf16 =
      pick(isa, {&attention_bf16_scalar, &attention_bf16_avx2, &attention_bf16_avx512,
                 &attention_bf16_avx512_bf16, &attention_bf16_amx});
  t.packed_linear = pick(isa, {&packed_linear_scalar, &packed_linear_avx2, &packed_linear_avx512});
  if (isa >= Isa::avx512_bf16) t.decode_linear = decode_linear_avx512_bf16;
  return t;
}

}  // namespace

const CpuTable& cpu_table(Isa isa) {
  static const std::array tables = {make_table(Isa::scalar), make_table(Isa::avx2),
                                    make_table(Isa::avx512), make_table(Isa::avx512_bf16),
                                    make_table(Isa::amx)};
  return tables[static_cast<size_t>(isa)];
}

}  // namespace tandem

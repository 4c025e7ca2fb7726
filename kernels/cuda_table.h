#pragma once
#include "kernels/adapter/add_columns.h"
#include "kernels/adapter/dropout.h"
#include "kernels/adapter/grouped_products.h"
#include "kernels/adapter/magnitude.h"
#include "kernels/adapter/weight_norms.h"
#include "kernels/adapter/write_slices.h"
#include "kernels/attention/attention_backward_cuda.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_prefill_cuda.h"
#include "kernels/attention/mean_lse.h"
#include "kernels/channels/add_squares.h"
#include "kernels/channels/channel_norms.h"
#include "kernels/channels/channel_places.h"
#include "kernels/channels/channel_products.h"
#include "kernels/channels/choose_channels.h"
#include "kernels/channels/gather_columns.h"
#include "kernels/channels/score_channels.h"
#include "kernels/channels/unite_channels.h"
#include "kernels/channels/weight_part.h"
#include "kernels/code/choose_coded.h"
#include "kernels/code/draw_tail.h"
#include "kernels/code/value_clusters.h"
#include "kernels/copy/host_copy.h"
#include "kernels/copy/mailbox.h"
#include "kernels/cuda/bodies.h"
#include "kernels/embed/convert.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/embed_backward.h"
#include "kernels/embed/fill_random.h"
#include "kernels/ffn/gate_mul.h"
#include "kernels/ffn/gate_mul_backward.h"
#include "kernels/gather/attend_lists.h"
#include "kernels/gather/choose_keys_cuda.h"
#include "kernels/gather/copy_keys.h"
#include "kernels/gather/draw_keys.h"
#include "kernels/gather/hand_over_lists.h"
#include "kernels/gather/page_bounds.h"
#include "kernels/gather/score_keys.h"
#include "kernels/linear/code_tiles.h"
#include "kernels/linear/coded_linear.h"
#include "kernels/linear/held_part.h"
#include "kernels/linear/round_inputs.h"
#include "kernels/linear/skinny_linear.h"
#include "kernels/linear/tiled_linear.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/lsh/lsh_cuda.h"
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
#include "kernels/ranks/add_parts.h"
#include "kernels/ranks/peer_sum.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/sample_cuda.h"
#include "kernels/sample/slot_ids.h"
#include "kernels/sample/widen_rows.h"
#include "kernels/selection/chunks_cuda.h"
#include "kernels/selection/select_top_cuda.h"
#include "kernels/tree/append_round.h"
#include "kernels/tree/draw_children.h"
#include "kernels/tree/grow_beams.h"
#include "kernels/tree/propose_lookup.h"
#include "kernels/tree/verify_trees.h"

namespace tandem {

/// Lists the operations. ONE has a body for all GPUs: compiled for Hopper it takes part in
/// programmatic launches (launch.cuh), and nothing else would make it faster there. TWO has a
/// separate body for Hopper.
// clang-format off
#define TANDEM_CUDA_OPERATIONS(ONE, TWO) \
  ONE(rms_norm) \
  ONE(qk_squares) \
  ONE(row_norms) \
  ONE(gate_mul) \
  ONE(rope_kv) \
  ONE(rotate_q) \
  TWO(skinny_linear) \
  TWO(coded_linear) \
  ONE(quantize_tiles) \
  ONE(widen_tiles) \
  ONE(plain_codes) \
  ONE(round_inputs) \
  ONE(take_held) \
  ONE(put_held) \
  ONE(embed_tiles) \
  TWO(attention_few_rows) \
  TWO(attention_many_rows) \
  TWO(attention_backward) \
  ONE(merge_states) \
  ONE(attend_lists) \
  ONE(code_frames) \
  ONE(code_keys) \
  ONE(make_clusters) \
  ONE(assign_clusters) \
  ONE(choose_coded) \
  ONE(draw_tail) \
  ONE(key_votes) \
  ONE(choose_keys) \
  ONE(copy_keys) \
  ONE(choose_scored) \
  ONE(score_keys) \
  ONE(select_top) \
  ONE(draw_keys) \
  ONE(page_bounds) \
  ONE(score_pages) \
  ONE(chunk_means) \
  ONE(chunk_scores) \
  ONE(choose_chunks) \
  ONE(mean_keys) \
  ONE(hash_keys) \
  ONE(hash_append) \
  ONE(hash_queries) \
  ONE(collide) \
  ONE(mean_lse) \
  ONE(narrow_rows) \
  ONE(widen_eight_bit_rows) \
  ONE(copy_page) \
  ONE(move_tokens) \
  ONE(set_pages) \
  ONE(leave_ends) \
  ONE(catch_up) \
  ONE(append_round) \
  ONE(propose_lookup) \
  ONE(path_moves) \
  ONE(write_queries) \
  ONE(move_queries) \
  ONE(host_copy) \
  ONE(add_parts) \
  ONE(peer_sum) \
  ONE(peer_gather) \
  ONE(post) \
  ONE(await) \
  ONE(hand_over_lists) \
  ONE(read_clock) \
  ONE(embed) \
  ONE(convert) \
  ONE(fill_random) \
  TWO(top_n) \
  TWO(sample) \
  ONE(read_probe) \
  ONE(load_slot_ids) \
  ONE(store_slot_ids) \
  ONE(widen_rows) \
  TWO(draw_children) \
  ONE(grow_beams) \
  TWO(verify_trees) \
  ONE(rms_norm_backward) \
  ONE(column_sums) \
  ONE(row_norms_backward) \
  ONE(gate_mul_backward) \
  ONE(rope_backward) \
  ONE(cross_entropy) \
  ONE(embed_backward) \
  ONE(gather_columns) \
  ONE(scatter_columns) \
  ONE(exchange_channels) \
  ONE(unite_channels) \
  ONE(gate_up_channels) \
  ONE(down_channels) \
  ONE(transpose_rows) \
  ONE(square_scales) \
  ONE(add_squares) \
  ONE(channel_norms) \
  ONE(score_channels) \
  ONE(choose_channels) \
  ONE(channels_above) \
  ONE(read_weight_part) \
  ONE(write_weight_part) \
  ONE(add_elements) \
  ONE(square_sum) \
  ONE(adamw) \
  ONE(adamw_narrow) \
  ONE(dropout) \
  ONE(add_columns) \
  ONE(group_rows) \
  ONE(grouped_dots) \
  ONE(grouped_sums) \
  ONE(magnitude_scale) \
  ONE(magnitude_gradient) \
  ONE(row_squares) \
  ONE(weight_norms) \
  ONE(write_slices) \
  ONE(merge_low_rank)
// clang-format on

/// The CUDA bodies of every operation, as CpuTable holds the CPU variants: its portable one and
/// Hopper's where there is one. The parameters are those of the CPU with pointers into device
/// memory; a call puts its work on the stream and returns.
struct CudaTable {
  cuda::Bodies<bool(const SkinnyLinearShape&)> skinny_linear_fits;
  cuda::Bodies<bool(const CodeTiles&, int rows, bool norm)> coded_linear_fits;
  cuda::Bodies<bool(const CodeTiles&, DType)> quantize_tiles_fits;
  cuda::Bodies<void(const TiledLinearParams&, Stream)> tiled_linear;
  cuda::Bodies<bool(const TiledLinearParams&)> tiled_linear_fits;
#define TANDEM_ONE(op) cuda::Bodies<decltype(op##_cuda)> op;
#define TANDEM_TWO(op) cuda::Bodies<decltype(portable::op##_cuda)> op;
  TANDEM_CUDA_OPERATIONS(TANDEM_ONE, TANDEM_TWO)
#undef TANDEM_ONE
#undef TANDEM_TWO

  /// Calls f(name, bodies) for every operation.
  template <class F>
  void each(F&& f) const {
#define TANDEM_EACH(op) f(#op, op);
    TANDEM_EACH(skinny_linear_fits)
    TANDEM_EACH(coded_linear_fits)
    TANDEM_EACH(quantize_tiles_fits)
    TANDEM_EACH(tiled_linear)
    TANDEM_EACH(tiled_linear_fits)
    TANDEM_CUDA_OPERATIONS(TANDEM_EACH, TANDEM_EACH)
#undef TANDEM_EACH
  }
};

/// errors   kind device in a build without CUDA
const CudaTable& cuda_table();

}  // namespace tandem

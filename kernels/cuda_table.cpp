#include "kernels/cuda_table.h"

#include "kernels/embed/convert_cuda.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/embed/fill_random_cuda.h"
#include "kernels/ffn/silu_mul_cuda.h"
#include "kernels/linear/skinny_linear_cuda.h"
#include "kernels/linear/tiled_linear_cuda.h"
#include "kernels/norm/rms_norm_cuda.h"
#include "kernels/rope/rope_cuda.h"

namespace tandem {

const CudaTable& cuda_table() {
  static constexpr CudaTable table{
      .rms_norm = rms_norm_cuda,
      .silu_mul = silu_mul_cuda,
      .rope_kv = rope_kv_cuda,
      .rotate_q = rotate_q_cuda,
      .skinny_linear = skinny_linear_cuda,
      .tiled_linear = tiled_linear_cuda,
      .attention_few_rows = attention_few_rows_cuda,
      .attention_many_rows = attention_many_rows_cuda,
      .merge_states = merge_states_cuda,
      .copy_page = copy_page_cuda,
      .move_tokens = move_tokens_cuda,
      .set_pages = set_pages_cuda,
      .path_moves = path_moves_cuda,
      .host_copy = host_copy_cuda,
      .read_clock = read_clock_cuda,
      .embed = embed_cuda,
      .convert = convert_cuda,
      .fill_random = fill_random_cuda,
      .logit_stats = logit_stats_cuda,
      .top_n = top_n_cuda,
      .sample = sample_cuda,
      .read_probe = read_probe_cuda,
      .load_slot_ids = load_slot_ids_cuda,
      .store_slot_ids = store_slot_ids_cuda,
      .draw_children = draw_children_cuda,
      .verify_trees = verify_trees_cuda,
  };
  return table;
}

}  // namespace tandem

#include "kernels/cuda_table.h"

#include "kernels/embed/convert.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/fill_random.h"
#include "kernels/ffn/gate_mul.h"
#include "kernels/linear/tiled_linear.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope.h"

namespace tandem {
namespace {

// Bodies that a build without machine code for sm_90a leaves out.
#ifdef TANDEM_HAS_HOPPER
#define TANDEM_HOPPER(body) hopper::body
#else
#define TANDEM_HOPPER(body) nullptr
#endif

constexpr cuda::ByLibrary kCublasLt{"cuBLASLt"};

bool never_fits(const TiledLinearParams&) { return false; }

// {portable body, Hopper's}. One name alone is a body for both: compiled for Hopper it takes part
// in programmatic launches (launch.cuh), and nothing else would make it faster there.
constexpr CudaTable kTable{
    .rms_norm = {rms_norm_cuda},
    .gate_mul = {gate_mul_cuda},
    .rope_kv = {rope_kv_cuda},
    .rotate_q = {rotate_q_cuda},
    .skinny_linear = {portable::skinny_linear_cuda, TANDEM_HOPPER(skinny_linear_cuda)},
    .skinny_linear_fits = {portable::skinny_linear_fits, TANDEM_HOPPER(skinny_linear_fits)},
    .tiled_linear = {kCublasLt, TANDEM_HOPPER(tiled_linear_cuda)},
    .tiled_linear_fits = {never_fits, TANDEM_HOPPER(tiled_linear_fits)},
    .attention_few_rows = {portable::attention_few_rows_cuda,
                           TANDEM_HOPPER(attention_few_rows_cuda)},
    .attention_many_rows = {portable::attention_many_rows_cuda,
                            TANDEM_HOPPER(attention_many_rows_cuda)},
    .attention_backward = {portable::attention_backward_cuda,
                           TANDEM_HOPPER(attention_backward_cuda)},
    .merge_states = {merge_states_cuda},
    .attend_lists = {attend_lists_cuda},
    .code_frames = {code_frames_cuda},
    .code_keys = {code_keys_cuda},
    .choose_coded = {choose_coded_cuda},
    .draw_tail = {draw_tail_cuda},
    .key_votes = {key_votes_cuda},
    .choose_keys = {choose_keys_cuda},
    .copy_keys = {copy_keys_cuda},
    .choose_scored = {choose_scored_cuda},
    .score_keys = {score_keys_cuda},
    .select_top = {select_top_cuda},
    .draw_keys = {draw_keys_cuda},
    .page_bounds = {page_bounds_cuda},
    .score_pages = {score_pages_cuda},
    .chunk_means = {chunk_means_cuda},
    .chunk_scores = {chunk_scores_cuda},
    .choose_chunks = {choose_chunks_cuda},
    .mean_keys = {mean_keys_cuda},
    .hash_keys = {hash_keys_cuda},
    .hash_append = {hash_append_cuda},
    .hash_queries = {hash_queries_cuda},
    .collide = {collide_cuda},
    .mean_lse = {mean_lse_cuda},
    .narrow_rows = {narrow_rows_cuda},
    .widen_eight_bit_rows = {widen_eight_bit_rows_cuda},
    .copy_page = {copy_page_cuda},
    .move_tokens = {move_tokens_cuda},
    .set_pages = {set_pages_cuda},
    .leave_ends = {leave_ends_cuda},
    .catch_up = {catch_up_cuda},
    .append_round = {append_round_cuda},
    .propose_lookup = {propose_lookup_cuda},
    .path_moves = {path_moves_cuda},
    .write_queries = {write_queries_cuda},
    .move_queries = {move_queries_cuda},
    .host_copy = {host_copy_cuda},
    .add_parts = {add_parts_cuda},
    .peer_sum = {peer_sum_cuda},
    .peer_gather = {peer_gather_cuda},
    .post = {post_cuda},
    .await = {await_cuda},
    .hand_over_lists = {hand_over_lists_cuda},
    .read_clock = {read_clock_cuda},
    .embed = {embed_cuda},
    .convert = {convert_cuda},
    .fill_random = {fill_random_cuda},
    .top_n = {portable::top_n_cuda, TANDEM_HOPPER(top_n_cuda)},
    .sample = {portable::sample_cuda, TANDEM_HOPPER(sample_cuda)},
    .read_probe = {read_probe_cuda},
    .load_slot_ids = {load_slot_ids_cuda},
    .store_slot_ids = {store_slot_ids_cuda},
    .widen_rows = {widen_rows_cuda},
    .draw_children = {portable::draw_children_cuda, TANDEM_HOPPER(draw_children_cuda)},
    .grow_beams = {grow_beams_cuda},
    .verify_trees = {portable::verify_trees_cuda, TANDEM_HOPPER(verify_trees_cuda)},
    .rms_norm_backward = {rms_norm_backward_cuda},
    .column_sums = {column_sums_cuda},
    .gate_mul_backward = {gate_mul_backward_cuda},
    .rope_backward = {rope_backward_cuda},
    .cross_entropy = {cross_entropy_cuda},
    .embed_backward = {embed_backward_cuda},
    .gather_columns = {gather_columns_cuda},
    .scatter_columns = {scatter_columns_cuda},
    .exchange_channels = {exchange_channels_cuda},
    .unite_channels = {unite_channels_cuda},
    .gate_up_channels = {gate_up_channels_cuda},
    .down_channels = {down_channels_cuda},
    .transpose_rows = {transpose_rows_cuda},
    .square_scales = {square_scales_cuda},
    .add_squares = {add_squares_cuda},
    .channel_norms = {channel_norms_cuda},
    .score_channels = {score_channels_cuda},
    .choose_channels = {choose_channels_cuda},
    .channels_above = {channels_above_cuda},
    .read_weight_part = {read_weight_part_cuda},
    .write_weight_part = {write_weight_part_cuda},
    .add_elements = {add_elements_cuda},
    .square_sum = {square_sum_cuda},
    .adamw = {adamw_cuda},
    .adamw_narrow = {adamw_narrow_cuda},
    .dropout = {dropout_cuda},
    .add_columns = {add_columns_cuda},
    .group_rows = {group_rows_cuda},
    .grouped_dots = {grouped_dots_cuda},
    .grouped_sums = {grouped_sums_cuda},
    .magnitude_scale = {magnitude_scale_cuda},
    .magnitude_gradient = {magnitude_gradient_cuda},
    .row_squares = {row_squares_cuda},
    .weight_norms = {weight_norms_cuda},
    .write_slices = {write_slices_cuda},
    .merge_low_rank = {merge_low_rank_cuda},
};

}  // namespace

const CudaTable& cuda_table() { return kTable; }

}  // namespace tandem

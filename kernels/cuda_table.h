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
#include "kernels/linear/skinny_linear.h"
#include "kernels/linear/tiled_linear.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/lsh/lsh_cuda.h"
#include "kernels/norm/column_sums.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/norm/rms_norm_backward.h"
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

/// The CUDA bodies of every operation, as CpuTable holds the CPU variants: its portable one and
/// Hopper's where there is one. The parameters are those of the CPU with pointers into device
/// memory; a call puts its work on the stream and returns.
struct CudaTable {
  cuda::Bodies<void(const RmsNormParams&, Stream)> rms_norm;
  cuda::Bodies<void(const GateMulParams&, Stream)> gate_mul;
  cuda::Bodies<void(const RopeKvParams&, Stream)> rope_kv;
  cuda::Bodies<void(const RotateQParams&, Stream)> rotate_q;
  cuda::Bodies<void(const SkinnyLinearParams&, Stream)> skinny_linear;
  cuda::Bodies<bool(const SkinnyLinearShape&)> skinny_linear_fits;
  cuda::Bodies<void(const TiledLinearParams&, Stream)> tiled_linear;
  cuda::Bodies<bool(const TiledLinearParams&)> tiled_linear_fits;
  cuda::Bodies<void(const AttentionParams&, const AttentionLaunch&, Stream)> attention_few_rows;
  cuda::Bodies<void(const AttentionParams&, const AttentionRows&, Stream)> attention_many_rows;
  cuda::Bodies<void(const AttentionBackwardParams&, const AttentionBackwardLaunch&, Stream)>
      attention_backward;
  cuda::Bodies<void(const MergeStatesParams&, int, Stream)> merge_states;
  cuda::Bodies<void(const AttendListsParams&, Stream)> attend_lists;
  cuda::Bodies<void(const CodeFramesParams&, Stream)> code_frames;
  cuda::Bodies<void(const CodeKeysParams&, Stream)> code_keys;
  cuda::Bodies<void(const ChooseCodedParams&, Stream)> choose_coded;
  cuda::Bodies<void(const DrawTailParams&, Stream)> draw_tail;
  cuda::Bodies<void(const KeyVotesCudaParams&, Stream)> key_votes;
  cuda::Bodies<void(const ChooseKeysParams&, Stream)> choose_keys;
  cuda::Bodies<void(const CopyKeysParams&, Stream)> copy_keys;
  cuda::Bodies<void(const ChooseScoredParams&, Stream)> choose_scored;
  cuda::Bodies<void(const ScoreKeysParams&, Stream)> score_keys;
  cuda::Bodies<void(const SelectTopCudaParams&, Stream)> select_top;
  cuda::Bodies<void(const DrawKeysParams&, Stream)> draw_keys;
  cuda::Bodies<void(const PageBoundsParams&, Stream)> page_bounds;
  cuda::Bodies<void(const ScorePagesParams&, Stream)> score_pages;
  cuda::Bodies<void(const ChunkMeansCudaParams&, Stream)> chunk_means;
  cuda::Bodies<void(const ChunkScoresCudaParams&, Stream)> chunk_scores;
  cuda::Bodies<void(const ChooseChunksParams&, Stream)> choose_chunks;
  cuda::Bodies<void(const MeanKeysParams&, Stream)> mean_keys;
  cuda::Bodies<void(const HashKeysParams&, Stream)> hash_keys;
  cuda::Bodies<void(const HashAppendCudaParams&, Stream)> hash_append;
  cuda::Bodies<void(const HashQueriesParams&, Stream)> hash_queries;
  cuda::Bodies<void(const CollideParams&, Stream)> collide;
  cuda::Bodies<void(const MeanLseParams&, Stream)> mean_lse;
  cuda::Bodies<void(const EightBitRowsParams&, Stream)> narrow_rows;
  cuda::Bodies<void(const EightBitRowsParams&, Stream)> widen_eight_bit_rows;
  cuda::Bodies<void(const CopyPageParams&, Stream)> copy_page;
  cuda::Bodies<void(const MoveTokensParams&, Stream)> move_tokens;
  cuda::Bodies<void(const SetPagesParams&, Stream)> set_pages;
  cuda::Bodies<void(const LeaveEndsParams&, Stream)> leave_ends;
  cuda::Bodies<void(const CatchUpParams&, Stream)> catch_up;
  cuda::Bodies<void(const AppendRoundParams&, Stream)> append_round;
  cuda::Bodies<void(const ProposeLookupParams&, Stream)> propose_lookup;
  cuda::Bodies<void(const PathMovesParams&, Stream)> path_moves;
  cuda::Bodies<void(const WriteQueriesParams&, Stream)> write_queries;
  cuda::Bodies<void(const MoveQueriesParams&, Stream)> move_queries;
  cuda::Bodies<void(const HostCopyParams&, Stream)> host_copy;
  cuda::Bodies<void(const AddPartsParams&, Stream)> add_parts;
  cuda::Bodies<void(const PeerSumParams&, Stream)> peer_sum;
  cuda::Bodies<void(const PeerGatherParams&, Stream)> peer_gather;
  cuda::Bodies<void(const MailboxParams&, Stream)> post;
  cuda::Bodies<void(const MailboxParams&, Stream)> await;
  cuda::Bodies<void(const HandOverListsParams&, Stream)> hand_over_lists;
  cuda::Bodies<void(uint64_t* ns, Stream)> read_clock;
  cuda::Bodies<void(const EmbedParams&, Stream)> embed;
  cuda::Bodies<void(const ConvertParams&, Stream)> convert;
  cuda::Bodies<void(const FillRandomParams&, Stream)> fill_random;
  cuda::Bodies<void(const TopNParams&, Stream)> top_n;
  cuda::Bodies<void(const SampleParams&, Stream)> sample;
  cuda::Bodies<void(const void* data, size_t bytes, uint32_t* sink, Stream)> read_probe;
  cuda::Bodies<void(const SlotIdsParams&, Stream)> load_slot_ids;
  cuda::Bodies<void(const SlotIdsParams&, Stream)> store_slot_ids;
  cuda::Bodies<void(const WidenRowsParams&, Stream)> widen_rows;
  cuda::Bodies<DrawChildrenCudaFn> draw_children;
  cuda::Bodies<void(const GrowBeamsParams&, Stream)> grow_beams;
  cuda::Bodies<VerifyTreesCudaFn> verify_trees;
  cuda::Bodies<void(const RmsNormBackwardParams&, Stream)> rms_norm_backward;
  cuda::Bodies<void(const ColumnSumsParams&, Stream)> column_sums;
  cuda::Bodies<void(const GateMulBackwardParams&, Stream)> gate_mul_backward;
  cuda::Bodies<void(const RopeBackwardParams&, Stream)> rope_backward;
  cuda::Bodies<void(const CrossEntropyParams&, Stream)> cross_entropy;
  cuda::Bodies<void(const EmbedBackwardParams&, Stream)> embed_backward;
  cuda::Bodies<void(const GatherColumnsParams&, Stream)> gather_columns;
  cuda::Bodies<void(const ScatterColumnsParams&, Stream)> scatter_columns;
  cuda::Bodies<void(const ExchangeChannelsParams&, Stream)> exchange_channels;
  cuda::Bodies<void(const UniteChannelsParams&, Stream)> unite_channels;
  cuda::Bodies<void(const GateUpChannelsParams&, Stream)> gate_up_channels;
  cuda::Bodies<void(const DownChannelsParams&, Stream)> down_channels;
  cuda::Bodies<void(const TransposeRowsParams&, Stream)> transpose_rows;
  cuda::Bodies<void(const SquareScalesParams&, Stream)> square_scales;
  cuda::Bodies<void(const AddSquaresParams&, Stream)> add_squares;
  cuda::Bodies<void(const ChannelNormsParams&, Stream)> channel_norms;
  cuda::Bodies<void(const ScoreChannelsParams&, Stream)> score_channels;
  cuda::Bodies<void(const ChooseChannelsParams&, Stream)> choose_channels;
  cuda::Bodies<void(const ChooseChannelsParams&, Stream)> channels_above;
  cuda::Bodies<void(const WeightPartParams&, Stream)> read_weight_part;
  cuda::Bodies<void(const WeightPartParams&, Stream)> write_weight_part;
  cuda::Bodies<void(const AddElementsParams&, Stream)> add_elements;
  cuda::Bodies<void(const SquareSumParams&, Stream)> square_sum;
  cuda::Bodies<void(const AdamWParams&, Stream)> adamw;
  cuda::Bodies<void(const AdamWNarrowParams&, Stream)> adamw_narrow;
  cuda::Bodies<void(const DropoutParams&, Stream)> dropout;
  cuda::Bodies<void(const AddColumnsParams&, Stream)> add_columns;
  cuda::Bodies<void(const GroupRowsParams&, Stream)> group_rows;
  cuda::Bodies<void(const GroupedDotsParams&, Stream)> grouped_dots;
  cuda::Bodies<void(const GroupedSumsParams&, Stream)> grouped_sums;
  cuda::Bodies<void(const MagnitudeScaleParams&, Stream)> magnitude_scale;
  cuda::Bodies<void(const MagnitudeGradientParams&, Stream)> magnitude_gradient;
  cuda::Bodies<void(const RowSquaresParams&, Stream)> row_squares;
  cuda::Bodies<void(const WeightNormsParams&, Stream)> weight_norms;
  cuda::Bodies<void(const WriteSlicesParams&, Stream)> write_slices;
  cuda::Bodies<void(const MergeLowRankParams&, Stream)> merge_low_rank;

  /// Calls f(name, bodies) for every operation.
  template <class F>
  void each(F&& f) const {
    f("rms_norm", rms_norm);
    f("gate_mul", gate_mul);
    f("rope_kv", rope_kv);
    f("rotate_q", rotate_q);
    f("skinny_linear", skinny_linear);
    f("skinny_linear_fits", skinny_linear_fits);
    f("tiled_linear", tiled_linear);
    f("tiled_linear_fits", tiled_linear_fits);
    f("attention_few_rows", attention_few_rows);
    f("attention_many_rows", attention_many_rows);
    f("attention_backward", attention_backward);
    f("merge_states", merge_states);
    f("attend_lists", attend_lists);
    f("code_frames", code_frames);
    f("code_keys", code_keys);
    f("choose_coded", choose_coded);
    f("draw_tail", draw_tail);
    f("key_votes", key_votes);
    f("choose_keys", choose_keys);
    f("copy_keys", copy_keys);
    f("choose_scored", choose_scored);
    f("score_keys", score_keys);
    f("select_top", select_top);
    f("draw_keys", draw_keys);
    f("page_bounds", page_bounds);
    f("score_pages", score_pages);
    f("chunk_means", chunk_means);
    f("chunk_scores", chunk_scores);
    f("choose_chunks", choose_chunks);
    f("mean_keys", mean_keys);
    f("hash_keys", hash_keys);
    f("hash_append", hash_append);
    f("hash_queries", hash_queries);
    f("collide", collide);
    f("mean_lse", mean_lse);
    f("narrow_rows", narrow_rows);
    f("widen_eight_bit_rows", widen_eight_bit_rows);
    f("copy_page", copy_page);
    f("move_tokens", move_tokens);
    f("set_pages", set_pages);
    f("leave_ends", leave_ends);
    f("catch_up", catch_up);
    f("append_round", append_round);
    f("propose_lookup", propose_lookup);
    f("path_moves", path_moves);
    f("write_queries", write_queries);
    f("move_queries", move_queries);
    f("host_copy", host_copy);
    f("add_parts", add_parts);
    f("peer_sum", peer_sum);
    f("peer_gather", peer_gather);
    f("post", post);
    f("await", await);
    f("hand_over_lists", hand_over_lists);
    f("read_clock", read_clock);
    f("embed", embed);
    f("convert", convert);
    f("fill_random", fill_random);
    f("top_n", top_n);
    f("sample", sample);
    f("read_probe", read_probe);
    f("load_slot_ids", load_slot_ids);
    f("store_slot_ids", store_slot_ids);
    f("widen_rows", widen_rows);
    f("draw_children", draw_children);
    f("grow_beams", grow_beams);
    f("verify_trees", verify_trees);
    f("rms_norm_backward", rms_norm_backward);
    f("column_sums", column_sums);
    f("gate_mul_backward", gate_mul_backward);
    f("rope_backward", rope_backward);
    f("cross_entropy", cross_entropy);
    f("embed_backward", embed_backward);
    f("gather_columns", gather_columns);
    f("scatter_columns", scatter_columns);
    f("exchange_channels", exchange_channels);
    f("unite_channels", unite_channels);
    f("gate_up_channels", gate_up_channels);
    f("down_channels", down_channels);
    f("transpose_rows", transpose_rows);
    f("square_scales", square_scales);
    f("add_squares", add_squares);
    f("channel_norms", channel_norms);
    f("score_channels", score_channels);
    f("choose_channels", choose_channels);
    f("channels_above", channels_above);
    f("read_weight_part", read_weight_part);
    f("write_weight_part", write_weight_part);
    f("add_elements", add_elements);
    f("square_sum", square_sum);
    f("adamw", adamw);
    f("adamw_narrow", adamw_narrow);
    f("dropout", dropout);
    f("add_columns", add_columns);
    f("group_rows", group_rows);
    f("grouped_dots", grouped_dots);
    f("grouped_sums", grouped_sums);
    f("magnitude_scale", magnitude_scale);
    f("magnitude_gradient", magnitude_gradient);
    f("row_squares", row_squares);
    f("weight_norms", weight_norms);
    f("write_slices", write_slices);
    f("merge_low_rank", merge_low_rank);
  }
};

/// errors   kind device in a build without CUDA
const CudaTable& cuda_table();

}  // namespace tandem

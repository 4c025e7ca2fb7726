#pragma once
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
#include "kernels/loss/cross_entropy.h"
#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/sign_project.h"
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

/// The CPU variant of every operation, chosen for one ISA. An entry without a variant for that ISA
/// holds the one of the next weaker; operations that only copy have one for all.
struct CpuTable {
  Isa isa;
  RmsNormFn* rms_norm;
  RopeKvFn* rope_kv;
  RotateQFn* rotate_q;
  GateMulFn* gate_mul;
  EmbedFn* embed;
  ConvertFn* convert;
  FillRandomFn* fill_random;
  LogitStatsFn* logit_stats;
  TopNFn* top_n;
  SampleFn* sample;
  DrawChildrenFn* draw_children;
  GrowBeamsFn* grow_beams;
  VerifyTreesFn* verify_trees;
  AcceptChancesFn* accept_chances;
  SignProjectFn* sign_project;
  HashProbeFn* hash_probe;
  AttendListFn* attend_list;
  KeyVotesFn* key_votes;
  RotateRowsFn* rotate_rows;
  CodeScanFn* code_scan;
  CodeRefineFn* code_refine;
  TailMassesFn* tail_masses;
  AddMeansFn* add_means;
  ChunkMeansFn* chunk_means;
  ChunkScoresFn* chunk_scores;
  SelectTopFn* select_top;
  SelectReachedFn* select_reached;
  DrawExponentialsFn* draw_exponentials;
  SampleTailFn* sample_tail;
  ReadProbeFn* read_probe;
  FmaProbeFn* fma_probe;
  NarrowRowsFn* narrow_rows;
  WidenEightBitRowsFn* widen_eight_bit_rows;
  CopyKeysFn* copy_keys;
  CopyPageFn* copy_page;
  MoveTokensFn* move_tokens;
  PathMovesFn* path_moves;
  SetPagesFn* set_pages;
  LeaveEndsFn* leave_ends;
  CatchUpFn* catch_up;
  AppendRoundFn* append_round;
  ProposeLookupFn* propose_lookup;
  WriteQueriesFn* write_queries;
  MeanLseFn* mean_lse;
  MoveQueriesFn* move_queries;
  SlotIdsFn* load_slot_ids;
  SlotIdsFn* store_slot_ids;
  WidenRowsFn* widen_rows;
  RmsNormBackwardFn* rms_norm_backward;
  ColumnSumsFn* column_sums;
  RopeBackwardFn* rope_backward;
  GateMulBackwardFn* gate_mul_backward;
  AttentionBackwardFn* attention_backward;
  CrossEntropyFn* cross_entropy;
  GatherColumnsFn* gather_columns;
  UniteChannelsFn* unite_channels;
  GateUpChannelsFn* gate_up_channels;
  DownChannelsFn* down_channels;
  SquareScalesFn* square_scales;
  AddSquaresFn* add_squares;
  ChannelNormsFn* channel_norms;
  ScoreChannelsFn* score_channels;
  ChooseChannelsFn* choose_channels;
  ChooseChannelsFn* channels_above;
  AdamWNarrowFn* adamw_narrow;
  SquareSumFn* square_sum;
  AdamWFn* adamw;
  DropoutFn* dropout;
  AddColumnsFn* add_columns;
  GroupRowsFn* group_rows;
  GroupedDotsFn* grouped_dots;
  GroupedSumsFn* grouped_sums;
  MagnitudeScaleFn* magnitude_scale;
  MagnitudeGradientFn* magnitude_gradient;
  RowSquaresFn* row_squares;
  WeightNormsFn* weight_norms;
  const AttentionKernel* attention_f32;
  const AttentionKernel* attention_bf16;
  const PackedLinearKernel* packed_linear;
  DecodeLinearFn* decode_linear;  // null where the CPU does not multiply bf16
};

/// Table of one ISA; `isa` must not exceed isa_detected().
const CpuTable& cpu_table(Isa isa);
/// Table of the ISA in use.
inline const CpuTable& cpu_table() { return cpu_table(isa_in_use()); }

}  // namespace tandem

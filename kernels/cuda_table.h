#pragma once
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_prefill_cuda.h"
#include "kernels/copy/host_copy_cuda.h"
#include "kernels/embed/convert.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/fill_random.h"
#include "kernels/ffn/silu_mul.h"
#include "kernels/linear/skinny_linear.h"
#include "kernels/linear/tiled_linear.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/page/page_cuda.h"
#include "kernels/probe/read_probe_cuda.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/sample_cuda.h"
#include "kernels/sample/slot_ids_cuda.h"
#include "kernels/tree/draw_children_cuda.h"
#include "kernels/tree/verify_trees_cuda.h"

namespace tandem {

/// The CUDA launcher of every operation, as CpuTable holds the CPU variants. The parameters are
/// those of the CPU with pointers into device memory; a call puts its work on the stream and
/// returns.
struct CudaTable {
  void (*rms_norm)(const RmsNormParams&, Stream);
  void (*silu_mul)(const SiluMulParams&, Stream);
  void (*rope_kv)(const RopeKvParams&, Stream);
  void (*rotate_q)(const RotateQParams&, Stream);
  void (*skinny_linear)(const SkinnyLinearParams&, Stream);
  void (*tiled_linear)(const TiledLinearParams&, Stream);
  void (*attention_few_rows)(const AttentionParams&, const AttentionLaunch&, Stream);
  void (*attention_many_rows)(const AttentionParams&, const AttentionRows&, Stream);
  void (*merge_states)(const MergeStatesParams&, int n_rows, Stream);
  void (*copy_page)(const CopyPageParams&, Stream);
  void (*move_tokens)(const MoveTokensParams&, Stream);
  void (*set_pages)(const SetPagesParams&, Stream);
  void (*path_moves)(const PathMovesParams&, Stream);
  void (*host_copy)(const HostCopyParams&, Stream);
  void (*read_clock)(uint64_t* ns, Stream);
  void (*embed)(const EmbedParams&, Stream);
  void (*convert)(const ConvertParams&, Stream);
  void (*fill_random)(const FillRandomParams&, Stream);
  void (*logit_stats)(const LogitStatsParams&, Stream);
  void (*top_n)(const TopNParams&, Stream);
  void (*sample)(const SampleCudaParams&, Stream);
  void (*read_probe)(const void* data, size_t bytes, uint32_t* sink, Stream);
  void (*load_slot_ids)(const SlotIdsParams&, Stream);
  void (*store_slot_ids)(const SlotIdsParams&, Stream);
  void (*draw_children)(const DrawChildrenCudaParams&, Stream);
  void (*verify_trees)(const VerifyTreesCudaParams&, Stream);
};

/// errors   kind device in a build without CUDA
const CudaTable& cuda_table();

}  // namespace tandem

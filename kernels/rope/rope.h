#pragma once
// Contracts of rope_kv, its backward pass and rotate_q. No STL: included by sources compiled with
// per-ISA flags.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

struct RopeKvParams {
  void* q;                   // [n_rows, Hq, d] act
  void* k_pool;              // [n_pages, Hkv, 64, d] act
  void* v_pool;              // [n_pages, Hkv, 64, d] act
  const void* qkv;           // [n_rows, (Hq + 2 Hkv) d] act: all q heads, all k heads, all v heads
  const float* cos_table;    // [n_positions, r/2]
  const float* sin_table;    // [n_positions, r/2]
  const int32_t* pos;        // [n_rows], 0 <= pos < n_positions
  const int32_t* slot_page;  // [n_rows], page of the row's token
  const int32_t* slot_in_page;                // [n_rows], 0 .. 63
  int n_rows, n_heads, n_kv_heads, head_dim;  // Hq, Hkv, d (even)
  DType act;                                  // bf16 or f32
  // Every q head and every k head is normalised before it is rotated; null: heads stay as they are.
  const float* q_norm = nullptr;  // [d], null exactly where k_norm is
  const float* k_norm = nullptr;  // [d]
  float norm_eps = 0;             // added to the mean square of a head
  int rotated = -1;               // r (even): the first dimensions of a head, which turn; -1: d
};

/// Splits the fused projection: rotates q and k by the row's position and writes k and v into the
/// KV pages. Half-split rotation as in the Llama checkpoints of Hugging Face: element i turns with
/// element i + r/2, and those from r on stay. With norms x / sqrt(mean(x^2) + norm_eps) * norm,
/// over a head, is rotated in place of a head x of q or k.
/// layout   act pointers contiguous; outputs alias nothing; no two rows of a call share a slot
/// numerics f32, one rounding to act; |out - ref| <= eps_act |ref| + 2 eps_f32 (|x1| + |x2|), with
///          norms (6 + d/16) eps_f32 and x normalised; v is copied. A row's result is the same in
///          any call
/// cost     reads and writes n_rows (Hq + 2 Hkv) d act
/// errors   none (preconditions checked by ops)
using RopeKvFn = void(const RopeKvParams&, Range rows);
RopeKvFn rope_kv_ref, rope_kv_scalar, rope_kv_avx2, rope_kv_avx512, rope_kv_avx512_bf16;

struct RopeBackwardParams {
  void* dqkv;  // [n_rows, (Hq + 2 Hkv) d] act: gradients of the rotated q and k and of v; gets that
               // of the fused projection
  const float* cos_table;                     // [n_positions, r/2]
  const float* sin_table;                     // [n_positions, r/2]
  const int32_t* pos;                         // [n_rows], 0 <= pos < n_positions
  int n_rows, n_heads, n_kv_heads, head_dim;  // Hq, Hkv, d (even)
  DType act;                                  // bf16 or f32
  // Of models that normalise heads, as rope_kv's; else null.
  const void* qkv = nullptr;      // [n_rows, (Hq + 2 Hkv) d] act: the projection
  const float* q_norm = nullptr;  // [d]
  const float* k_norm = nullptr;  // [d]
  float norm_eps = 0;
  float* dnorms = nullptr;  // [n_rows, 2 d] gets each row's part of the gradients of q_norm and
                            // k_norm, summed over its heads; or null
  int rotated = -1;         // RopeKvParams has it
};

/// The backward pass of rope_kv, in place: turns the gradients of q and k back by the rows'
/// positions, then takes them through the norms of heads where there are any. v's stays.
/// layout   act pointers contiguous; nothing aliases
/// numerics f32, rounded to act once, with norms twice; |out - ref| <= eps_act |ref| + 2 eps_f32
///          (|y1| + |y2|), with norms as rms_norm_backward of inputs that far off. A row's result
///          is the same in any call
/// cost     reads and writes n_rows (Hq + Hkv) d act, with norms reads as much again
/// errors   none (preconditions checked by ops)
using RopeBackwardFn = void(const RopeBackwardParams&, Range rows);
RopeBackwardFn rope_backward_ref, rope_backward_scalar, rope_backward_avx2, rope_backward_avx512,
    rope_backward_avx512_bf16;

struct RotateQParams {
  void* out;               // [n_rows, Hq, d] act, may be q
  const void* q;           // [n_rows, Hq, d] act
  const float* cos_table;  // [n_positions, r/2]
  const float* sin_table;  // [n_positions, r/2]
  const int32_t* pos;      // [n_rows], 0 <= pos < n_positions
  int32_t max_pos;         // >= 0
  int n_rows, n_heads, head_dim;
  DType act;
  float scale = 1;   // multiplies what turns: takes back what the tables' cosines are multiplied by
  int rotated = -1;  // RopeKvParams has it
};

/// r of any of these.
template <class Params>
constexpr int rotated_dims(const Params& p) {
  return p.rotated < 0 ? p.head_dim : p.rotated;
}

/// Turns rotated queries from position `pos` back to `max_pos`, for attention whose sinks are
/// repositioned; rows at or before max_pos keep their position.
/// numerics as rope_kv
/// errors   none (preconditions checked by ops)
using RotateQFn = void(const RotateQParams&, Range rows);
RotateQFn rotate_q_ref, rotate_q_scalar, rotate_q_avx2, rotate_q_avx512, rotate_q_avx512_bf16;

/// rope_kv on a GPU, with pointers into device memory. Rows of a negative
/// slot_page, which pad a captured batch, get their q and leave the pools alone. With norms for
/// d <= 256, as attention on a GPU has it.
void rope_kv_cuda(const RopeKvParams&, Stream);

/// rope_backward on a GPU, with pointers into device memory. With norms for d <= 256.
void rope_backward_cuda(const RopeBackwardParams&, Stream);

/// rotate_q on a GPU, with pointers into device memory.
void rotate_q_cuda(const RotateQParams&, Stream);

}  // namespace tandem

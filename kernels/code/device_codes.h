#pragma once
// Key codes on a GPU: the numbers of code.h in another order, which tensor cores read as they are.
// Pointers lie in device memory.
//
// Signs of a group: 512 bytes for every 32 coordinates. A warp that multiplies a tile of 16 keys by
// 32 coordinates (mma.m16n8k32) takes of them the bits at the tile's place, one a byte: those of
// lane 4 g
// + t are keys g and g + 8 at coordinates 4 t to 4 t + 3 and 16 further on.
// Scales and shares: a key's two bytes side by side; the 16 keys of the group that equal k modulo 8
// lie together, those of a lane. Lower bits: a key's coordinates four at a time, one a byte, each
// in bits - 1 neighbouring bits.
#include "kernels/code/code.h"

namespace tandem {

/// A bit of a group's signs, or the lowest one of a coordinate among a key's lower bits.
struct CodeBitPlace {
  int64_t byte;
  int bit;
};
constexpr CodeBitPlace device_sign_place(int in_group, int c) {
  const int lane = in_group % 8 * 4 + c % 16 / 4, word = in_group / 8 % 2 + c / 16 % 2 * 2;
  return {int64_t{c / 32} * 512 + lane * 16 + word * 4 + c % 4, in_group / 16};
}
/// The scale of a key; its share follows.
constexpr int device_scale_place(int in_group) {
  return in_group % 8 * 32 + in_group / 16 * 4 + in_group / 8 % 2 * 2;
}
constexpr CodeBitPlace device_low_place(int c, int bits) {
  const int each = 8 / (bits - 1);  // coordinates of a byte
  return {c / (4 * each) * 4 + c % 4, c / 4 % each * (bits - 1)};
}

/// The codes of one layer, in blocks of the index.
struct DeviceCodes {
  uint8_t* groups;  // of block b and KV head h at b * group_block_stride + h * group_head_stride
  uint8_t* low;     // the same, with its strides; 16-byte aligned
  float* frames;    // of a slot and KV head: center [d], axis [d], CodeUnits
  int64_t group_block_stride, group_head_stride, low_block_stride, low_head_stride;
  int64_t frame_slot_stride, frame_head_stride;
  const float* signs;  // [2, dims] of the rotation
  int d, dims, bits;
  int block_shift;  // keys of a block are 2^block_shift, and kRegionKeys or more, where a sequence
                    // has more than one
};

/// The clusters of one layer (tail_means.h).
struct DeviceClusters {
  // A cell of cluster_cell_bytes(d) per slot s and KV head h, number s * slot_stride + h *
  // head_stride.
  uint8_t* cells = nullptr;
  int64_t slot_stride = 0, head_stride = 0;
  // A byte per block b, KV head h and key i, at b * id_block_stride + h * id_head_stride + i. The
  // strides are multiples of kCodeKeys.
  uint8_t* ids = nullptr;
  int64_t id_block_stride = 0, id_head_stride = 0;
};

/// Tokens of a sequence whose index is made, and where they are.
struct IndexedTokens {
  const void *k_pool, *v_pool;  // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;         // of the sequence
  int n_kv_heads;
  DType dtype;
  int token, n;  // tokens [token, token + n)
  // [n_pages, n_kv_heads, 64, 2] of a token's key and value, whose elements are int8_t and mean
  // number * scale rounded to dtype; null: the pools are of dtype.
  const float* scales = nullptr;
};

inline constexpr int kFrameSplits = 64;

struct CodeFramesParams {
  DeviceCodes codes;
  IndexedTokens tokens;
  int slot;
  // Queries whose mean is the axis: those of tokens [first_query, first_query + n_queries), token t
  // at row t % ring_capacity. None: no axis.
  const void* queries;  // [ring_capacity, n_heads, d] of dtype
  int first_query, n_queries, ring_capacity, n_heads;
  double* sums;  // scratch [kFrameSplits, n_kv_heads, d]
};
/// Sets the frames of a slot, all KV heads, by its tokens: lib/kv/policies/code_frames.h.
/// numerics means in f64; the sums' order follows from the number of tokens alone
/// cost     reads the keys twice
void code_frames_cuda(const CodeFramesParams&, Stream);

struct CodeKeysParams {
  DeviceCodes codes;
  IndexedTokens tokens;
  int slot;
  int block, offset;  // the tokens go there, those of the block before `offset` stay
  bf16* means;        // of values over runs of kMeanKeys tokens: of the block and KV head h at h *
                      // mean_head_stride; null: none are wanted
  int64_t mean_head_stride;
};
/// Writes codes and means of values. A run that began before `offset` is averaged again.
/// numerics a bit differs from the CPU's only where a rotated coordinate lies within rounding of a
///          step's bound
/// cost     reads keys and values once
void code_keys_cuda(const CodeKeysParams&, Stream);

}  // namespace tandem

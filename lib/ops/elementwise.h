#pragma once
#include "kernels/ffn/gate.h"
#include "kernels/linear/code_tiles.h"
#include "ops/rope_table.h"
#include "ops/step_arrays.h"
#include "tensor/tensor.h"

/// The operations of a layer beside its products and attention. Tensors of one call are on one
/// device; on a GPU the work goes to the stream, and other pointers are into that GPU's memory too.
namespace tandem::ops {

/// A factor of what a norm gives, and whether that is added to the output, of f32.
struct NormOutput {
  float scale = 1;
  bool adds = false;
};

/// out = x / sqrt(mean(x^2) + eps) * weight, row by row; without a weight x as it is.
/// shapes   out [rows, dim] act; x [rows, dim] f32; weight [dim] f32, or null
void rms_norm(const Tensor& out, const Tensor& x, const float* weight, float eps,
              Stream stream = {}, NormOutput output = {});
/// The same of some rows of x: out[r] is of x[rows[r]]; on a GPU NaN where x has no such row.
/// shapes   as rms_norm, but rows [rows of out], each within x
void rms_norm_of(const Tensor& out, const Tensor& x, const int32_t* rows, const float* weight,
                 float eps, Stream stream = {}, NormOutput output = {});

/// out = the activation of the gate, times up.
/// shapes   out [rows, F] act; gate_up [rows, 2 F] act
void gate_mul(const Tensor& out, const Tensor& gate_up, Gate gate, Stream stream = {});

/// Of a table whose rows several ranks divide: the id of its first row here, and all ids.
struct VocabularyPart {
  int first = 0, whole = 0;
};

/// Norms of the heads of q and k, both or none.
struct HeadNorms {
  const float* q = nullptr;  // [d] f32
  const float* k = nullptr;  // [d] f32
  float eps = 0;
};

/// Norms of the whole rows of q and k.
struct RowNorms {
  const float* q = nullptr;  // [Hq d] f32
  const float* k = nullptr;  // [Hkv d] f32
  float eps = 0;
  int q_dim = 0, kv_dim = 0;
  int q_all = 0, k_all = 0;  // sums over all ranks
  int first_k = 0;           // numbers of k that the rank before has too
};
/// Writes the sums of squares of q and k, for row_norms; on several ranks they are added between.
/// shapes   qkv [rows, (Hq + 2 Hkv) d] act; squares [rows, 2] f32
void qk_squares(const Tensor& squares, const Tensor& qkv, const RowNorms& norms,
                Stream stream = {});
/// Normalises the rows of q and k, and copies v.
/// shapes   out and qkv [rows, (Hq + 2 Hkv) d] act, maybe one
void row_norms(const Tensor& out, const Tensor& qkv, const Tensor& squares, const RowNorms& norms,
               Stream stream = {});

struct RopeKvArgs {
  Tensor q;               // [rows, Hq, d]
  Tensor k_pool, v_pool;  // [pages, Hkv, 64, d]
  Tensor qkv;             // [rows, (Hq + 2 Hkv) d]; all four act
  const RopeTable& rope;
  const StepArrays& step;  // of it pos, row_page, row_in_page [rows]
  HeadNorms norms = {};
};
/// Normalises the heads of q and k where there are norms, rotates them by the rows' positions, and
/// writes k and v into their pages.
void rope_kv(const RopeKvArgs& args, Stream stream = {});

/// Embeds tokens on a GPU: out[r] = table[ids[r]] in f32; NaN for an id outside the table.
/// shapes   out [rows, dim] f32; table [V, dim]; ids [rows]
void embed_ids(const Tensor& out, const Tensor& table, const int32_t* ids, Stream stream,
               const VocabularyPart& part = {});
void embed_ids(const Tensor& out, const CodeTiles& table, const int32_t* ids, Stream stream,
               const VocabularyPart& part = {});

/// Turns rotated queries of positions beyond max_pos back to max_pos; the others keep theirs.
/// shapes   out, q [rows, Hq, d] act; pos [rows]
void rotate_q(const Tensor& out, const Tensor& q, const RopeTable& rope, const int32_t* pos,
              int32_t max_pos, Stream stream = {});

}  // namespace tandem::ops

#pragma once
// Contract of embed. No STL: included by sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

struct EmbedParams {
  float* out;          // [n_rows, dim]
  const void* table;   // [V, dim] of type `from`, any byte alignment (a mapped file)
  const int32_t* ids;  // [n_rows], 0 <= id < V
  int n_rows, dim;
  DType from;     // bf16, f16 or f32
  int vocab = 0;  // V; read on a GPU alone, whose ids the host has not seen
  // There, of a table that several ranks divide: the id of its first row here, and how many ids
  // there are. The rows of the others' ids are zeros.
  int first = 0, whole = 0;
};

/// Token ids to residual rows: out[r] = table[ids[r]] widened to f32.
/// layout   rows contiguous
/// numerics exact
/// cost     reads n_rows * dim table elements, writes n_rows * dim * 4 bytes
/// errors   none (preconditions checked by ops)
using EmbedFn = void(const EmbedParams&, Range rows);
EmbedFn embed_ref, embed_scalar, embed_avx2, embed_avx512;

/// The same on a GPU, with pointers into device memory and the table aligned to its element. Ids
/// outside [0, vocab), or of a divided table outside [0, whole), which the host cannot have
/// checked, give a row of NaN.
void embed_cuda(const EmbedParams&, Stream);

}  // namespace tandem

#pragma once
// Contract of writing an adapter's slices into the weights of a GPU's run. No STL.
#include "base/types.h"

namespace tandem {

/// Rows of a matrix, or columns of one, and the values written there, numbers of the same size.
struct SliceWrite {
  void* weights;         // row i at i * stride
  const void* values;    // [n, width], of columns [width, n]
  const int32_t* index;  // [n] distinct rows, or columns
  int64_t stride;        // numbers between two rows of the weights
  int32_t n, width;      // width: numbers of a row; of columns: rows
  bool columns;
};

struct WriteSlicesParams {
  const SliceWrite* slices;  // [n], of which no two write one number; in device memory
  int n;
  int number_bytes;  // 2 or 4
};

/// Writes all slices; all other numbers keep their bits.
/// cost     reads values and writes them once; single columns cost a sector of 32 bytes each
/// errors   none. No other work on the stream may read the weights meanwhile: the next kernel that
///          reads weights early must come after one that waits (kernels/cuda/launch.cuh)
void write_slices_cuda(const WriteSlicesParams&, Stream);

/// Weights with low-rank factors merged into them: of one matrix.
struct MergeLowRankParams {
  void* weights;       // [rows, in] of type, out
  const void* base;    // the same without them
  const float* a;      // [rank, in]
  const float* b;      // [rows, rank], times gamma
  const float* scale;  // [rows] what each row is multiplied by at last, of DoRA; or null
  int64_t rows, in;
  int rank;
  bool by_input;  // both matrices are [in, rows]
  DType type;     // bf16 or f32
};

/// weights = scale (base + b a), in f32 and rounded once.
/// cost     reads base, writes weights; 2 rank operations a number on plain cores
/// errors   as write_slices_cuda
void merge_low_rank_cuda(const MergeLowRankParams&, Stream);

}  // namespace tandem

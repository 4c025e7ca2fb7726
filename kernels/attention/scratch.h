#pragma once
// One thread's scratch and its layout. Vectors of queries are the outermost index of every operand:
// what one vector needs stays in L1 while the keys of a step go by.
#include "kernels/attention/attention.h"

namespace tandem {
namespace {

constexpr int kMaxQueries = 128;  // queries of a task
constexpr int kMaxStepPages = 4;  // pages of one online-softmax step
constexpr int kMaxStepKeys = kMaxStepPages * kPageTokens;
constexpr int kMaxGroupLanes = 64;  // queries that go through a step together
// Queries of a task up to which each has its own vectors (few_queries.h).
constexpr int kMaxFewQueries = 16;
constexpr int kMaxStateLanes = kMaxFewQueries * 16;  // of m and l
static_assert(kMaxStateLanes >= kMaxQueries);

/// Rows that bf16 matrix units need: head_dim up to whole tiles of 32.
constexpr int padded_dim(int head_dim) { return (head_dim + 31) / 32 * 32; }

struct Scratch {
  float* q;              // [queries, padded d] queries transposed per vector, f32 or pairs of bf16
  float* s;              // [group lanes, step keys] scores; probabilities
  float* p;              // [group lanes, step keys] probabilities as pairs of bf16
  float* o;              // [queries, padded d] of the current split, transposed
  float* o_run;          // [queries, padded d] of the splits so far
  float *m, *l;          // [lanes] maximum (times scale * log2 e) and sum of the current split
  float *m_run, *l_run;  // [lanes] of the splits so far
  float* alpha;          // [lanes] factor of o in this step
  float* score_off;      // [lanes] added to the scores that are wanted, times log2 e
  float* top_scores;     // [step keys] largest of them over the lanes
  float *k, *v;          // copies of the step's pages in the form the multiply wants
  uint32_t* masks;       // [step pages, vectors, 64] lanes that see a key
};

constexpr size_t kScratchAlign = 64;

/// Lays the parts out from `base`; returns the bytes used. Sizes are for the largest block of any
/// ISA, so that one plan serves all.
inline size_t lay_out(Scratch& scratch, char* base, int head_dim) {
  size_t used = 0;
  const auto take = [&](float*& part, size_t floats) {
    part = reinterpret_cast<float*>(base + used);
    used += (floats * sizeof(float) + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  };
  const auto d = static_cast<size_t>(padded_dim(head_dim));
  take(scratch.q, kMaxQueries * d);
  take(scratch.s, kMaxGroupLanes * kMaxStepKeys);
  take(scratch.p, kMaxGroupLanes * kMaxStepKeys / 2);
  take(scratch.o, kMaxQueries * d);
  take(scratch.o_run, kMaxQueries * d);
  take(scratch.m, kMaxStateLanes);
  take(scratch.l, kMaxStateLanes);
  take(scratch.m_run, kMaxStateLanes);
  take(scratch.l_run, kMaxStateLanes);
  take(scratch.alpha, kMaxStateLanes);
  take(scratch.score_off, kMaxStateLanes);
  take(scratch.top_scores, kMaxStepKeys);
  // f32 copies of one page, or bf16 copies of a step of four: the latter is larger.
  take(scratch.k, kMaxStepKeys * d / 2);
  take(scratch.v, kMaxStepKeys * d / 2);
  float* masks = nullptr;
  take(masks, static_cast<size_t>(kMaxStepPages) * kMaxQueries * kPageTokens);
  scratch.masks = reinterpret_cast<uint32_t*>(masks);
  return used;
}

}  // namespace
}  // namespace tandem

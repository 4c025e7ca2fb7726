#pragma once
// Rounds of speculation that are laid out before the one ahead of them has ended: where their rows
// are to lie, and from which tokens they go on, follows from numbers that are in a GPU's memory
// alone. The CPU's bodies are the reference of a GPU's, whose parameters point into device memory.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

/// Of a text's newest tokens, those that a round may ask for: the last one drawn, and up to two
/// before it whose keys a draft may lack.
inline constexpr int kNewestTokens = 3;

/// How the last round ended, by its places.
struct RoundEnds {
  int32_t* kept;    // [places] tokens that it added to a text
  int32_t* newest;  // [places, kNewestTokens] of the text since, the newest last
  int32_t* turn;    // [1] 0 or 1: changes with every round; null: of rounds within another
};

struct LeaveEndsParams {
  RoundEnds ends;         // out
  const int32_t* newest;  // [n_seqs, kNewestTokens] of the text as the round began, its root last
  const int32_t* tokens;  // [n_seqs, n_nodes] of trees
  const int32_t* path;    // [n_seqs, n_nodes] accepted nodes, the root left out
  const int32_t* n_accepted;  // [n_seqs] of them
  const int32_t* bonus;       // [n_seqs] the token after the path
  int n_seqs, n_nodes;
};

/// Notes how a round ended, and turns. A bonus without meaning (< 0) counts as token 0: the host
/// will report it, and the round that goes on from it has to read some row.
/// errors   none (preconditions checked by the caller)
using LeaveEndsFn = void(const LeaveEndsParams&, Range seqs);
LeaveEndsFn leave_ends_cpu;
void leave_ends_cuda(const LeaveEndsParams&, Stream);

/// The rows of a step under the page ids of another store of the same tokens.
struct OtherPages {
  int32_t* row_page = nullptr;     // [n_seqs * rows_each] moved on, too; null: there is none
  const int32_t* table = nullptr;  // [slots, max_pages]
};

/// The rows of one step, as many of every sequence.
struct StepRows {
  // Moved on:
  int32_t* base;         // [n_seqs] committed tokens
  int32_t* pos;          // [n_seqs * rows_each]
  int32_t* row_page;     // [n_seqs * rows_each]
  int32_t* row_in_page;  // [n_seqs * rows_each]

  const int32_t* tentative;   // [n_seqs] uncommitted rows of earlier steps; null: none
  const int32_t* slot;        // [n_seqs] row of the page table
  const int32_t* page_table;  // [slots, max_pages]
  int32_t rows_each, max_pages;
  OtherPages others[2] = {};  // those of a further page group, and of near keys
};

struct CatchUpParams {
  RoundEnds ends;
  const int32_t* prior;  // [n_seqs] place of the sequence in the last round; -1: nothing to add
  // Of those that are prior:
  int32_t* tokens;    // [n_seqs, n_nodes] roots become the newest tokens
  int32_t* newest;    // [n_seqs, kNewestTokens]
  int32_t* position;  // [n_seqs] tokens of the text
  int32_t* unread;    // [n_seqs, n_unread] become the newest tokens; null: none
  const StepRows* steps;
  int n_seqs, n_nodes;
  int n_unread;     // up to kNewestTokens
  int n_known_ids;  // unread tokens from this id on become 0
  int n_steps;
};

/// Moves sequences on by what the last round added to them: lengths, positions and where rows lie.
/// errors   none (preconditions checked by the caller)
using CatchUpFn = void(const CatchUpParams&, Range seqs);
CatchUpFn catch_up_cpu;
void catch_up_cuda(const CatchUpParams&, Stream);

}  // namespace tandem

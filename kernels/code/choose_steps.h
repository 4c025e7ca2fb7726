#pragma once
// The kernels of choose_coded_cuda, in their order.
#include "kernels/code/choose_coded.h"

namespace tandem::coded {

/// Makes whole numbers of queries, and the floors that candidates reach.
void prepare_queries(const ChooseCodedParams&, Stream);
/// Reads all signs, and keeps the scores that reach the floors.
void scan_signs(const ChooseCodedParams&, Stream);
/// Writes the scores of all keys to tail_scores.
void leave_scores(const ChooseCodedParams&, Stream);
/// Scores these, the candidates, by all bits.
void refine_kept(const ChooseCodedParams&, Stream);
/// Lists the best of them.
void choose_best(const ChooseCodedParams&, Stream);

/// The same for sets that heads share.
void prepare_shared(const ChooseCodedParams&, Stream);
void scan_shared(const ChooseCodedParams&, Stream);
void refine_shared(const ChooseCodedParams&, Stream);
void choose_shared(const ChooseCodedParams&, Stream);

}  // namespace tandem::coded

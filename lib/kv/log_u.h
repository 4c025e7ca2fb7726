#pragma once
#include <vector>

namespace tandem::kv {

/// Probability that a key at this cosine to the query falls into the query's bucket in at least
/// min_hits of `tables` hash tables of `bits` random hyperplanes each (MagicPIG, arXiv 2410.16179,
/// section 4.3, for any number of hits).
/// numerics relative error about 1e-13, also where the probability is tiny
double inclusion_probability(double cosine, int bits, int tables, int min_hits);

/// log(inclusion_probability + floor) at the cosines -1 + 2 i / intervals, i = 0 .. intervals: what
/// the kernel attend_list interpolates. Where the sum is below 1e-30 the entry is log(1e-30).
/// floor   keeps weights of improbable keys below 1 / floor; 0: none
/// numerics linear interpolation in 1024 intervals is within 5e-5 of the function with floor 1e-4
std::vector<float> log_u_table(int bits, int tables, int min_hits, double floor, int intervals);

}  // namespace tandem::kv

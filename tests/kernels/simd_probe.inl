#include "kernels/simd/vec.h"
#include "tests/kernels/simd_probe.h"

namespace simd = tandem::simd;
using simd::Vec;

void TANDEM_ISA_FN(simd_probe)(const SimdProbe& p) {
  Vec sum = simd::zero(), top = simd::set1(-__builtin_inff());
  for (int i = 0; i < p.n; i += Vec::kLanes) {
    const int left = p.n - i < Vec::kLanes ? p.n - i : Vec::kLanes;
    const Vec x = simd::load_n(p.x + i, left), y = simd::load_n(p.y + i, left),
              z = simd::load_n(p.z + i, left);
    simd::store_n(p.exp + i, exp(x), left);
    simd::store_n(p.exp2 + i, exp2(x), left);
    simd::store_n(p.exp2_nonpositive + i, exp2_nonpositive(simd::zero() - abs(x)), left);
    simd::store_n(p.fma + i, fma(x, y, z), left);
    simd::store_n(p.max + i, max(x, y), left);
    const simd::Mask below = simd::mask_of_bits(simd::bits_of(lt(x, y)));
    simd::store_n(p.select_lt + i, select(below, z, x), left);
    simd::store_n(p.rounded + i, x, left);
    simd::store_n(p.widened + i, simd::load_n(p.rounded + i, left), left);
    simd::store_n(p.of_bytes + i, simd::load_n(p.bytes + i, left), left);
    simd::store_n(p.to_bytes + i, x * simd::set1(10.0f), left);
    sum = sum + x;
    top = max(top, select(simd::first_lanes(left), x, top));
  }
  for (int i = 0; i + Vec::kLanes <= p.n; i += Vec::kLanes) {
    simd::store(p.of_bytes + i, simd::load(p.bytes + i));
    simd::store(p.to_bytes + i, simd::load(p.x + i) * simd::set1(10.0f));
  }
  for (int i = 0; i + 2 * Vec::kLanes <= p.n; i += 2 * Vec::kLanes) {
    Vec even, odd;
    simd::load_even_odd(p.rounded + i, even, odd);
    simd::store(p.even + i / 2, even);
    simd::store(p.odd + i / 2, odd);
  }
#ifndef TANDEM_ISA_scalar
  for (int i = 0; i + 2 * Vec::kLanes <= p.n; i += 2 * Vec::kLanes) {
    Vec first, second;
    simd::join_pairs(simd::load(p.even + i / 2), simd::load(p.odd + i / 2), first, second);
    simd::store(p.joined + i, first);
    simd::store(p.joined + i + Vec::kLanes, second);
  }
  if (p.n >= 64) {
    Vec r[4];
    for (int i = 0; i < 4; ++i) r[i] = simd::load_fours(p.x + 4 * i, 4);
    transpose_fours(r);
    for (int i = 0; i < 4; ++i) simd::store(p.columns + i * Vec::kLanes, r[i]);
  }
#endif
  *p.add_all = simd::reduce_add(sum);
  *p.max_all = simd::reduce_max(top);
}

void TANDEM_ISA_FN(simd_f16_probe)(const SimdF16Probe& p) {
  for (int i = 0; i < p.n; i += Vec::kLanes) {
    simd::store(p.rounded + i, simd::load(p.x + i));
    simd::store(p.widened + i, simd::load(p.rounded + i));
  }
  for (int row = 0; row < p.n / Vec::kLanes; row += Vec::kLanes) {
    Vec r[Vec::kLanes];
    for (int i = 0; i < Vec::kLanes; ++i) r[i] = simd::load(p.x + (row + i) * Vec::kLanes);
    simd::store(p.tops + row, simd::max_of_each(r));
  }
}

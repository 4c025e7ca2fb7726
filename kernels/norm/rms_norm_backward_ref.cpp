#include <cmath>

#include "kernels/norm/rms_norm_backward.h"
#include "kernels/reference.h"

namespace tandem {

void rms_norm_backward_ref(const RmsNormBackwardParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const int64_t dy = static_cast<int64_t>(r) * p.dim;
    const int64_t x = static_cast<int64_t>(p.rows == nullptr ? r : p.rows[r]) * p.dim;
    const auto x_at = [&](int i) { return element(p.x, p.x_type, x + i); };
    if (p.weight == nullptr) {
      for (int i = 0; i < p.dim; ++i)
        p.dx[x + i] = static_cast<float>(p.dx[x + i] + p.scale * element(p.dy, p.dy_type, dy + i));
      continue;
    }
    const auto h_at = [&](int i) { return element(p.dy, p.dy_type, dy + i) * p.weight[i]; };
    double squares = 0, dots = 0;
    for (int i = 0; i < p.dim; ++i) {
      squares += x_at(i) * x_at(i);
      dots += h_at(i) * x_at(i);
    }
    const double inverse = 1 / std::sqrt(squares / p.dim + p.eps);
    const double mean = dots * inverse / p.dim;  // of h n
    for (int i = 0; i < p.dim; ++i)
      p.dx[x + i] = static_cast<float>(p.dx[x + i] +
                                       p.scale * inverse * (h_at(i) - x_at(i) * inverse * mean));
    if (p.inverse != nullptr) p.inverse[r] = static_cast<float>(p.scale * inverse);
  }
}

}  // namespace tandem

#include <algorithm>
#include <eigen3/Eigen/QR>
#include <eigen3/Eigen/SVD>

#include "model/adapters/low_rank_factors.h"

namespace tandem::model {
namespace {

using Matrix = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// X = Q R, where only products of Q are made.
class ThinQr {
 public:
  explicit ThinQr(const Matrix& x) : n_(std::min(x.rows(), x.cols())), qr_(x) {}
  Matrix r() const { return qr_.matrixQR().topRows(n_).triangularView<Eigen::Upper>(); }
  /// Q Y, [rows of X, columns of Y].
  Matrix q_times(const Matrix& y) const {
    Matrix padded = Matrix::Zero(qr_.rows(), y.cols());
    padded.topRows(n_) = y;
    return qr_.householderQ() * padded;
  }

 private:
  Eigen::Index n_;
  Eigen::HouseholderQR<Matrix> qr_;
};

Matrix wide(const std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return Eigen::Map<const RowMajor>(values.data(), rows, cols).cast<double>();
}

std::vector<float> narrow(const Matrix& m) {
  const RowMajor rows = m.cast<float>();
  return {rows.data(), rows.data() + rows.size()};
}

}  // namespace

ShortenedFactors shorten_factors(Factors factors, int64_t most) {
  const int64_t out = static_cast<int64_t>(factors.b.size()) / factors.rank;
  const ThinQr left(wide(factors.b, out));
  const ThinQr right(wide(factors.a, factors.rank).transpose());
  const Matrix core = left.r() * right.r().transpose();  // B A = Q_left core Q_right^T
  ShortenedFactors result{.factors = std::move(factors), .change = core.squaredNorm()};
  Factors& f = result.factors;
  if (f.rank <= most) return result;
  const Eigen::BDCSVD<Matrix> svd(core, Eigen::ComputeThinU | Eigen::ComputeThinV);
  const Eigen::VectorXd& values = svd.singularValues();
  const Eigen::Index rank = std::min<Eigen::Index>(most, values.size());
  result.lost = values.tail(values.size() - rank).squaredNorm();
  // Each factor has the root of the singular values, so that neither is out of proportion.
  const Matrix root = values.head(rank).cwiseSqrt().asDiagonal();
  f.rank = rank;
  f.b = narrow(left.q_times(svd.matrixU().leftCols(rank) * root));
  f.a = narrow(right.q_times(svd.matrixV().leftCols(rank) * root).transpose());
  return result;
}

}  // namespace tandem::model

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
  ShortenedFactors result{.factors = std::move(factors)};
  Factors& f = result.factors;
  const Matrix b = wide(f.b, static_cast<int64_t>(f.b.size()) / f.rank), a = wide(f.a, f.rank);
  if (f.rank <= most) {
    // |B A|^2 = trace(B^T B A A^T): no decomposition is needed.
    const Matrix inner = b.transpose() * b;
    result.change = std::max(0.0, inner.cwiseProduct(a * a.transpose()).sum());
    return result;
  }
  const ThinQr left(b), right(a.transpose());
  const Matrix core = left.r() * right.r().transpose();  // B A = Q_left core Q_right^T
  result.change = core.squaredNorm();
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

std::vector<double> singular_values(const Factors& f) {
  const ThinQr left(wide(f.b, static_cast<int64_t>(f.b.size()) / f.rank)),
      right(wide(f.a, f.rank).transpose());
  const Eigen::BDCSVD<Matrix> svd(left.r() * right.r().transpose());
  return {svd.singularValues().begin(), svd.singularValues().end()};
}

}  // namespace tandem::model

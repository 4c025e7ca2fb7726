#pragma once
// Contract of coded_linear, a dense layer of codes on few rows. No STL.
#include "kernels/linear/code_tiles.h"
#include "kernels/linear/skinny_linear.h"

namespace tandem {

struct CodedLinearParams {
  SkinnyLinearParams product;  // without w and stages; the sizes are those of `w`
  CodeTiles w;
  int y_stride;  // numbers from a row of y to the next
};

/// skinny_linear for weights in codes, which are exact in the products. Hopper takes more rows of
/// x.
/// numerics Sums of a group are multiplied by its scale in f32. They are added in an order that
///          the sizes and the format of W fix. Every run gives the same bits, for a row with any
///          other rows. Each body has its own order. Hopper has up to three: the portable
///          body's to normalise x and up to 4 rows, one up to 16, and one for more.
/// cost     reads W once
/// errors   none; call only where coded_linear_fits: a block finds the shared memory that it needs
namespace portable {
/// Reads x once an SM.
void coded_linear_cuda(const CodedLinearParams&, Stream);
/// norm     x is normalised first
bool coded_linear_fits(const CodeTiles& w, int rows, bool norm);
}  // namespace portable

namespace hopper {
/// Takes the portable body for few rows, and to normalise x.
void coded_linear_cuda(const CodedLinearParams&, Stream);
bool coded_linear_fits(const CodeTiles& w, int rows, bool norm);
}  // namespace hopper

}  // namespace tandem

#include "speculate/tree/tree_file.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const speculate::TreeFile file = speculate::parse_tree(fuzz::as_text(data, size), "fuzz");
    // What is written must be read back as the same tree.
    const std::string text = speculate::tree_json(file);
    if (speculate::tree_json(speculate::parse_tree(text, "again")) != text)
      throw std::logic_error("a tree that does not survive its own file");
  });
}

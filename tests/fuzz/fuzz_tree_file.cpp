#include "spec/tree/tree_file.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const spec::TreeFile file = spec::parse_tree(fuzz::as_text(data, size), "fuzz");
    // What is written must be read back as the same tree.
    const std::string text = spec::tree_json(file);
    if (spec::tree_json(spec::parse_tree(text, "again")) != text)
      throw std::logic_error("a tree that does not survive its own file");
  });
}

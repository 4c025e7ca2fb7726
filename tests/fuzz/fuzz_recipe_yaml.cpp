#include "recipe/node.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::recipe, [&] {
    const recipe::Origin origin{std::make_shared<const std::string>("fuzz"), {}, 1, 1};
    recipe::Node tree = recipe::parse_yaml(std::string(fuzz::as_text(data, size)), origin);
    recipe::merge(tree, recipe::Node(tree));
  });
}

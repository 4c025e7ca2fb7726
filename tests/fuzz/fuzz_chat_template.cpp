#include "source_dir.h"
#include "target.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const auto tokenizer = text::load_tokenizer(test::source_dir() / "recipes/models/tiny-2m");
  return fuzz::run(ErrorKind::input, [&] {
    const auto chat = text::recognise_chat_template(fuzz::as_text(data, size), *tokenizer, "fuzz");
    const text::ChatMessage messages[] = {{"user", "Hi"}, {"assistant", "Yes?"}, {"user", "Bye"}};
    tokenizer->encode(chat.render(messages).text, {.add_bos = false});
  });
}

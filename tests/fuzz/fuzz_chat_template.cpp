// Any text is a chat template that writes a chat, or is refused; nothing else, and in bounded time.
#include "target.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const text::ChatTemplate t(fuzz::as_text(data, size), "fuzz", {}, {{"bos_token", "<s>"}},
                               {"</s>"});
    try {
      t.sample({{"user", "Hi"}, {"assistant", "Yes?"}, {"user", "Bye"}, {"assistant", "No"}}, "f");
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::recipe) throw;  // what raise_exception says
      fuzz::check_message(e.what());
    }
  });
}

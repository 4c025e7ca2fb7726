// A chat: messages from standard input, one a line, answers streamed.
//
//   chat MODEL [DRAFT]      DRAFT as in a recipe: ngram, or "{kind: model, path: FOLDER}"
#include <cstdio>
#include <iostream>
#include <string>

#include "tandem/tandem.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: chat MODEL [DRAFT]\n");
    return 2;
  }
  try {
    const std::string draft = argc > 2 ? argv[2] : "";
    tandem::Model model = tandem::Model::open(argv[1], {.draft = draft});
    tandem::Session session = model.session();
    const tandem::Sampling how = model.suggested_sampling();
    for (std::string line; std::cout << "> " << std::flush, std::getline(std::cin, line);) {
      const tandem::Result answer = session.chat(line, how, [](const tandem::Token& token) {
        std::cout << token.text << std::flush;
        return true;
      });
      std::cout << "\n";
      if (answer.finish == tandem::Finish::context) break;
    }
    std::cout << "\n";
    return 0;
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "chat: %s\n  hint: %s\n", e.what(), e.hint_text().c_str());
    return 1;
  }
}

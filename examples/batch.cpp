// Several prompts at a time: prompts from standard input, one a line, answers in their order.
//
//   batch MODEL [SEQUENCES]      SEQUENCES run together, 8 by default
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tandem/tandem.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: batch MODEL [SEQUENCES]\n");
    return 2;
  }
  try {
    std::vector<std::string> prompts;
    for (std::string line; std::getline(std::cin, line);) prompts.push_back(line);
    const int sequences = argc > 2 ? std::atoi(argv[2]) : 8;
    tandem::Model model =
        tandem::Model::open(argv[1], {.context = 2048, .sessions = sequences});
    const auto answers = model.generate(prompts, {.max_tokens = 40});
    for (size_t i = 0; i < answers.size(); ++i)
      std::cout << prompts[i] << answers[i].text << "\n";
    return 0;
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "batch: %s\n  hint: %s\n", e.what(), e.hint_text().c_str());
    return 1;
  }
}

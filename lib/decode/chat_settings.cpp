#include "decode/chat_settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace tandem::decode {

text::ChatSettings chat_settings(const recipe::Chat& chat) {
  text::ChatSettings settings{.choice = chat.template_path,
                              .date = chat.date.value_or(text::kChatDate),
                              .thinking = chat.thinking,
                              .tools = chat.tools,
                              .documents = chat.documents};
  try {
    const auto variables = recipe::ordered_json_of(chat.variables);
    for (const auto& [name, value] : variables.items()) {
      constexpr std::string_view kOwn[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};
      if (std::ranges::find(kOwn, name) != std::end(kOwn))
        throw recipe_error("chat.variables", "'{}' is set by the chat and cannot be a variable",
                           name)
            .hint("set tools and documents with chat.tools and chat.documents, or in the chat");
      settings.variables.emplace_back(name, text::jinja::from_json(value));
    }
  } catch (const text::jinja::Failure& e) {
    throw recipe_error("chat.variables", "{}", e.what());
  }
  return settings;
}

}  // namespace tandem::decode

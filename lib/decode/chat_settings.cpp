#include "decode/chat_settings.h"

#include <nlohmann/json.hpp>

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
    for (const auto& [name, value] : variables.items())
      settings.variables.emplace_back(name, text::jinja::from_json(value));
  } catch (const text::jinja::Failure& e) {
    throw recipe_error("chat.variables", "{}", e.what());
  }
  return settings;
}

}  // namespace tandem::decode

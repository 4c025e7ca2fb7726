#pragma once
#include "recipe/sections.h"
#include "text/chat_template.h"

namespace tandem::decode {

/// Section `chat` of a recipe, as the template takes it.
/// errors   kind recipe at chat.variables: an integer beyond 64 bits, or a name that the chat itself gives
text::ChatSettings chat_settings(const recipe::Chat& chat);

}  // namespace tandem::decode

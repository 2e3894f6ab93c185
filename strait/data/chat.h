// Conversations as text.
#pragma once

#include <string>

#include "strait/base/json.h"

namespace strait {

/// The text of a list of {"role": ..., "content": ...}, in the template ChatML:
///
///   <|im_start|>ROLE
///   CONTENT<|im_end|>
///
/// one message after the other, each with a line break behind it. Further members of a message are
/// left out. UserError naming the message (from 1) and the member: not an object, a member that is
/// missing or no string, a role that is empty or has a line break, a content or role that spells
/// one of the marks.
std::string chat_text(const Json& messages);

}  // namespace strait

// The families like Llama once more, in plain loops in fp64 on the tensors of a Hugging Face
// folder. Shares no code with the blocks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/convert/stored_model.h"

namespace strait::test {

/// Logits behind each of `tokens`; what sets the families apart is read from config.json.
Logits plain_logits(const std::string& folder, const std::vector<int32_t>& tokens);

/// A folder with a small random model of `family` ("smollm": Llama with a tied head).
void make_folder(const std::string& family, const std::string& folder);

}  // namespace strait::test

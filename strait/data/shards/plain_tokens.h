// nanoGPT's token files: 16-bit tokens and nothing else. Format: karpathy/nanoGPT,
// data/openwebtext/prepare.py (numpy's memmap of uint16).
#pragma once

#include <string>
#include <string_view>

#include "strait/data/shards/tokens.h"

namespace strait {

/// Whether a .bin file is plain tokens: it does not begin as files of llm.c do, whose header is
/// known by a magic number or, where that is not known, by the zeros that fill it up.
bool is_plain_tokens(std::string_view bytes);

/// The tokens of the file, mapped. UserError (key data.path) naming the file: an odd number of
/// bytes.
TokenSegment open_plain_tokens(const std::string& path);

/// A .bin file without an index: plain tokens or a shard of llm.c, whichever it is. Errors as
/// open_plain_tokens and open_llmc_shard.
TokenSegment open_token_file(const std::string& path);

}  // namespace strait

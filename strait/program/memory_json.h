// MEM of the reports.
#pragma once

#include "strait/base/json.h"
#include "strait/program/memory.h"

namespace strait::program {

/// {weights, secondary, gradients, optimizer, activations, buffers, total} in bytes.
inline Json to_json(const MemoryUse& use) {
  return Json::object({{"weights", use.weights},
                       {"secondary", use.secondary},
                       {"gradients", use.gradients},
                       {"optimizer", use.optimizer},
                       {"activations", use.activations},
                       {"buffers", use.buffers},
                       {"total", use.total()}});
}

}  // namespace strait::program

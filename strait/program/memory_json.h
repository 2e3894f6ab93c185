// MEM of the reports.
#pragma once

#include "strait/base/json.h"
#include "strait/program/memory.h"

namespace strait::program {

/// {weights, secondary, gradients, optimizer, activations, buffers, total, tiers: {device, host,
/// disk}} in bytes. The device is where the rank computes, which on a processor is plain memory;
/// nothing lies on a disk.
inline Json to_json(const MemoryUse& use) {
  return Json::object(
      {{"weights", use.weights},
       {"secondary", use.secondary},
       {"gradients", use.gradients},
       {"optimizer", use.optimizer},
       {"activations", use.activations},
       {"buffers", use.buffers},
       {"total", use.total()},
       {"tiers",
        Json::object({{"device", use.total() - use.host}, {"host", use.host}, {"disk", 0}})}});
}

}  // namespace strait::program

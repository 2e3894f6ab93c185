// The run file as typed structs. Parsing, validation and printing: parse_run, validate_run,
// print_run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strait/config/options.h"
#include "strait/config/reserved_options.h"
#include "strait/data/options.h"
#include "strait/optim/options.h"
#include "strait/shape/options.h"
#include "strait/topology/options.h"

namespace strait {

/// Where a key was written: line 0 means on the command line (--set).
struct KeyPlace {
  std::string file;
  int64_t line = 0;
};

/// A whole run. Field names are the keys of run.toml; docs/run-file.md is generated from the same
/// table.
struct Run {
  int64_t version = 1;
  std::string name = "my-run";
  uint64_t seed = 1337;
  RuntimeOptions runtime;
  TensorOptions tensor;
  PipelineOptions pipeline;
  CompressionOptions compression;
  LgrecoOptions lgreco;
  SimulateOptions simulate;
  PlanOptions plan;
  TuneOptions tune;
  ModelOptions model;
  DataOptions data;
  TrainOptions train;
  OptimizerOptions optimizer;
  EvaluationOptions evaluation;
  CheckpointOptions checkpoint;
  OutputOptions output;
  ClusterOptions cluster;
  MeshOptions mesh;
  PlacementOptions placement;
  SequenceOptions sequence;
  SyncOptions sync;
  ResidenceOptions residence;
  TiersOptions tiers;
  ZerothOrderOptions zeroth_order;
  ProjectionOptions projection;
  AdapterOptions adapter;

  std::string file;  // where it was read from, for messages; "" = built in memory

  /// Keys the user wrote ("train.steps" -> where), for messages and for presets that fill the rest.
  std::map<std::string, KeyPlace> written;
  bool is_set(const std::string& key) const { return written.contains(key); }
};

}  // namespace strait

# version.h: the project's version and the commit it was configured at; sources without git are told it.
if(NOT STRAIT_COMMIT)
  execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                  OUTPUT_VARIABLE STRAIT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT STRAIT_COMMIT)
  set(STRAIT_COMMIT "unknown")
endif()

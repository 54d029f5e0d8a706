# The extension module slipstream._core: native/bindings/*.cpp, one file an area.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})

# nanobind comes from the build requirements of pyproject.toml, as a Python package.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
  OUTPUT_STRIP_TRAILING_WHITESPACE
  OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

file(GLOB bindings CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/bindings/*.cpp")
if(NOT bindings)
  message(FATAL_ERROR "native/bindings has no sources: slipstream._core cannot be built")
endif()

# STABLE_ABI takes effect on Python >= 3.12 and is ignored below it; NOMINSIZE because the module carries the
# data plane's hot loops, which nanobind would otherwise compile for size.
nanobind_add_module(_core STABLE_ABI NB_STATIC NOMINSIZE ${bindings})
target_include_directories(_core PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(_core PRIVATE slipstream_xla slipstream_tensorflow slipstream_mxnet slipstream_lightgbm slipstream_lines slipstream_capi slipstream_reducers slipstream_session slipstream_boards slipstream_engine slipstream_transport slipstream_kernels
                                    slipstream_base)
if(SLIPSTREAM_PRECOMPILE)
  target_precompile_headers(_core PRIVATE ${SLIPSTREAM_HEADERS} <nanobind/nanobind.h>)
  set_source_files_properties(bindings/errors.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)  # it defines what Python.h reads
endif()
# The wheel must run where there is no compiler, and so maybe no matching libstdc++. The copy inside stays hidden: its
# symbols must not mix with those of the libstdc++ that a framework has loaded. The unwinder is the system's libgcc_s:
# pthread_exit unwinds with it, and another copy, static or of another library, aborts the process when it is asked
# about those frames (native/bindings/gil.h).
if(SLIPSTREAM_UNWINDER)
  # The compiler's C++ library comes in by itself, and so would its unwinder.
  target_link_libraries(_core PRIVATE "${SLIPSTREAM_UNWINDER}")
  target_link_options(_core PRIVATE "-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map")
else()
  target_link_options(_core PRIVATE -static-libstdc++ -shared-libgcc -Wl,--exclude-libs,ALL)
endif()
install(TARGETS _core LIBRARY DESTINATION slipstream)
install(FILES capi/slipstream.h DESTINATION slipstream/include)

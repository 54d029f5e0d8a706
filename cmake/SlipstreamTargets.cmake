# Options every native target shares, and the functions that turn a folder into a target.

find_package(Threads REQUIRED)

add_library(slipstream_options INTERFACE)
target_compile_features(slipstream_options INTERFACE cxx_std_20)
target_compile_options(slipstream_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -fvisibility=hidden
                                                    -fvisibility-inlines-hidden)
target_link_libraries(slipstream_options INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
if(SLIPSTREAM_WERROR)
  target_compile_options(slipstream_options INTERFACE -Werror)
endif()

if(SLIPSTREAM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SLIPSTREAM_FUZZ needs clang: cmake -DCMAKE_CXX_COMPILER=clang++ ...")
  endif()
  set(SLIPSTREAM_SANITIZE address)
  target_compile_options(slipstream_options INTERFACE -fsanitize=fuzzer-no-link -Wno-pass-failed)
endif()
if(SLIPSTREAM_SANITIZE STREQUAL "address")
  # vptr opens a pipe to see whether memory can be read: it takes objects for foreign where tests use up all descriptors.
  set(SLIPSTREAM_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
elseif(SLIPSTREAM_SANITIZE STREQUAL "thread")
  set(SLIPSTREAM_SANITIZE_FLAGS -fsanitize=thread)
elseif(SLIPSTREAM_SANITIZE)
  message(FATAL_ERROR "SLIPSTREAM_SANITIZE=${SLIPSTREAM_SANITIZE}: use address, thread or nothing")
endif()
if(SLIPSTREAM_SANITIZE)
  target_compile_options(slipstream_options INTERFACE ${SLIPSTREAM_SANITIZE_FLAGS} -O1 -g
                                                      -fno-omit-frame-pointer)
  target_link_options(slipstream_options INTERFACE ${SLIPSTREAM_SANITIZE_FLAGS})
endif()

# Most files include most of these, and the compiler takes longer to read them than to compile what the file has itself.
# A compiler's cache has no use for that. Builds with sanitizers go without, and find files (but for the bindings) that
# include too little.
set(SLIPSTREAM_PRECOMPILE_DEFAULT ON)
if(CMAKE_CXX_COMPILER_LAUNCHER OR SLIPSTREAM_SANITIZE)
  set(SLIPSTREAM_PRECOMPILE_DEFAULT OFF)
endif()
option(SLIPSTREAM_PRECOMPILE "Read the headers of the C++ library once, not for each file" ${SLIPSTREAM_PRECOMPILE_DEFAULT})
set(SLIPSTREAM_HEADERS
    <algorithm> <array> <atomic> <bit> <chrono> <condition_variable> <cstddef> <cstdint> <cstring> <deque> <functional>
    <map> <memory> <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <unordered_map> <utility>
    <vector>)

# slipstream_headers(<name> [compile options...])
#
# What targets with the same options take their headers from, by slipstream_precompiled().
function(slipstream_headers name)
  if(SLIPSTREAM_PRECOMPILE)
    file(CONFIGURE OUTPUT ${name}.cpp CONTENT "")
    add_library(${name} OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
    target_compile_options(${name} PRIVATE ${ARGN})
    target_link_libraries(${name} PRIVATE slipstream_options)
    target_precompile_headers(${name} PRIVATE ${SLIPSTREAM_HEADERS})
  endif()
endfunction()

function(slipstream_precompiled target from)
  if(SLIPSTREAM_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

slipstream_headers(slipstream_layer_headers)
if(SLIPSTREAM_PRECOMPILE)
  set_target_properties(slipstream_layer_headers PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()

# slipstream_layer(<folder> [lower targets...])
#
# One static library per folder of native/, linked to the layers it may use. A folder without sources yet is an
# INTERFACE library, so that the layers above it configure all the same.
function(slipstream_layer name)
  set(target slipstream_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp")
  if(sources)
    add_library(${target} STATIC ${sources})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(${target} PUBLIC slipstream_options ${ARGN})
    slipstream_precompiled(${target} slipstream_layer_headers)
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE slipstream_options ${ARGN})
  endif()
endfunction()

# The fuzz targets fuzz_frames and fuzz_handshake, and fuzz_seeds, which writes what they begin with. With
# SLIPSTREAM_FUZZ they are libFuzzer programs; else they run the files named on their command lines.
function(slipstream_fuzz_targets)
  foreach(name fuzz_frames fuzz_handshake fuzz_seeds)
    add_executable(${name} EXCLUDE_FROM_ALL "tests/${name}.cpp")
    if(SLIPSTREAM_TESTS)
      add_dependencies(native_tests ${name})
    endif()
    target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(${name} PRIVATE slipstream_capi slipstream_reducers slipstream_session slipstream_boards slipstream_engine slipstream_transport
                                          slipstream_kernels slipstream_base)
    if(SLIPSTREAM_FUZZ AND NOT name STREQUAL "fuzz_seeds")
      target_compile_definitions(${name} PRIVATE SLIPSTREAM_LIBFUZZER)
      target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    endif()
  endforeach()
endfunction()

# Every native/tests/<name>_test.cpp is one program and one ctest test; it may use all layers below bindings, except for
# those that show what needs less. The target native_tests builds all; without it, nobody waits for them.
set(SLIPSTREAM_LAYERS_OF_transport_alone_test slipstream_transport slipstream_base)
function(slipstream_tests)
  add_custom_target(native_tests)
  file(GLOB tests CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tests/*_test.cpp")
  # Tests use assert(), which Release would define away, and run once: compiling them takes longer than running them.
  set(options -UNDEBUG -O1)
  slipstream_headers(slipstream_test_headers ${options})
  foreach(source IN LISTS tests)
    get_filename_component(test ${source} NAME_WE)
    add_executable(${test} EXCLUDE_FROM_ALL ${source})
    add_dependencies(native_tests ${test})
    target_include_directories(${test} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_compile_options(${test} PRIVATE ${options})
    slipstream_precompiled(${test} slipstream_test_headers)
    set(layers ${SLIPSTREAM_LAYERS_OF_${test}})
    if(NOT layers)
      set(layers slipstream_tensorflow slipstream_lines slipstream_capi slipstream_reducers slipstream_session slipstream_boards slipstream_engine slipstream_transport slipstream_kernels slipstream_base)
    endif()
    target_link_libraries(${test} PRIVATE ${layers})
    add_test(NAME ${test} COMMAND ${test})
    set_tests_properties(${test} PROPERTIES TIMEOUT 300)
  endforeach()
  # It shows what a rank can only tell if it looks in time; no other test runs beside it.
  set_tests_properties(tcp_mtu_test PROPERTIES RUN_SERIAL ON)
  # Python tests load this one: plans are made there, and values checked. A sanitizer's runtime cannot come in that way.
  if(NOT SLIPSTREAM_SANITIZE)
    add_library(many_ranks MODULE EXCLUDE_FROM_ALL "tests/many_ranks.cpp")
    add_dependencies(native_tests many_ranks)
    target_include_directories(many_ranks PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(many_ranks PRIVATE slipstream_capi slipstream_reducers slipstream_session slipstream_boards slipstream_engine slipstream_transport
                                             slipstream_kernels slipstream_base)
  endif()
endfunction()

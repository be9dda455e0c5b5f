// Stand-ins for the classes of Core ML that the runner calls, for GCC's Objective-C runtime and GNUstep's Foundation.
//
// They behave as the documentation says: completion handlers come late and on another thread, buffers have padded rows,
// errors are NSErrors. What a model computes is asked of the reference runner (src/answers.rs). They prove that calls are
// made in order, with what they must be given, and that nothing leaks; they prove nothing about Core ML itself.
//
// The environment says what goes wrong:
//   STANDIN_FAULT=KIND:CALL[:N]   KIND error, exception, crash, hang or nothing; CALL compile, load, plan, state, input,
//                                 predict or array; at its Nth time, the first by default
//   STANDIN_CPU=OP,OP             ops that the plan prefers on the CPU
//   STANDIN_DECLINE=1             output backings are not used
//   STANDIN_LOG=FILE              calls, and at the end the objects that are still alive, are appended here
//   STANDIN_STDERR=FILE           stderr of every process is appended here
#import <Foundation/Foundation.h>
#include <objc/runtime.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- what Apple's runtime and libobjc2 have, and GCC's lacks --------------------------------------------------------

#undef object_getClass
Class standin_object_getClass(id object) __asm__("object_getClass");
Class standin_object_getClass(id object) { return object ? *(Class *)object : Nil; }
id objc_retain(id object) { return [object retain]; }
void objc_release(id object) { [object release]; }
id objc_autorelease(id object) { return [object autorelease]; }
id objc_retainAutorelease(id object) { return [[object retain] autorelease]; }
id objc_autoreleaseReturnValue(id object) { return [object autorelease]; }
id objc_retainAutoreleasedReturnValue(id object) { return [object retain]; }
void *objc_autoreleasePoolPush(void) { return [NSAutoreleasePool new]; }
void objc_autoreleasePoolPop(void *pool) { [(id)pool release]; }

// ---- what is alive, what was called, what goes wrong ----------------------------------------------------------------

enum kind { BLOCKS, BUFFERS, ARRAYS, VALUES, FEATURES, STATES, OPTIONS, CONFIGURATIONS, MODELS, NODES, KINDS };
static const char *const kind_names[KINDS] = {"blocks",  "buffers",        "arrays", "values", "features", "states",
                                              "options", "configurations", "models", "nodes"};
static int alive[KINDS];
static void born(enum kind kind) { __sync_fetch_and_add(&alive[kind], 1); }
static void died(enum kind kind) { __sync_fetch_and_sub(&alive[kind], 1); }

static void note(const char *format, ...) {
  const char *path = getenv("STANDIN_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fclose(file);
}

// Completion handlers that are still on their way: their threads end after whom they call.
static int late_handlers;

static void note_alive(void) {
  for (int tries = 0; __sync_fetch_and_add(&late_handlers, 0) && tries < 2000; tries++) usleep(5000);
  char text[400] = "alive";
  for (int kind = 0; kind < KINDS; kind++)
    if (alive[kind])
      snprintf(text + strlen(text), sizeof text - strlen(text), " %s=%d", kind_names[kind], alive[kind]);
  note("%s\n", text);
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("STANDIN_STDERR");
  if (path && !freopen(path, "a", stderr)) abort();
  atexit(note_alive);
}

// Whether a call is to fail by an error; the other faults happen here.
enum fault { NONE, ERROR, NOTHING };
static enum fault fault(const char *call) {
  static int seen;
  note("call %s\n", call);
  const char *asked = getenv("STANDIN_FAULT");
  if (!asked) return NONE;
  char kind[16] = "", name[16] = "";
  int at = 1;
  sscanf(asked, "%15[a-z]:%15[a-z]:%d", kind, name, &at);
  if (strcmp(name, call) || __sync_add_and_fetch(&seen, 1) != at) return NONE;
  note("fault %s %s\n", kind, call);
  if (!strcmp(kind, "crash")) raise(SIGTRAP);
  if (!strcmp(kind, "hang")) for (;;) pause();
  if (!strcmp(kind, "exception"))
    [NSException raise:NSInternalInconsistencyException format:@"the stand-in throws at %s", call];
  return strcmp(kind, "nothing") ? ERROR : NOTHING;
}

static NSError *error_of(NSInteger code, NSString *text) {
  NSError *cause = [NSError errorWithDomain:@"com.apple.appleneuralengine"
                                       code:6
                                   userInfo:[NSDictionary dictionaryWithObject:@"ANECCompile() FAILED"
                                                                        forKey:NSLocalizedDescriptionKey]];
  NSDictionary *info =
      [NSDictionary dictionaryWithObjectsAndKeys:text, NSLocalizedDescriptionKey, cause, NSUnderlyingErrorKey, nil];
  return [NSError errorWithDomain:@"com.apple.CoreML" code:code userInfo:info];
}
#define PLAN_ERROR                                                                                                     \
  error_of(-14, @"Failed to build the model execution plan using a model architecture file "                          \
                @"'/private/var/folders/zz/model.mlmodelc/model.mil' with error code: -14.")

static void must(BOOL held, const char *what) {
  if (held) return;
  note("broken: %s\n", what);
  fprintf(stderr, "stand-in: %s\n", what);
  abort();
}

// ---- blocks: GNUstep's own _Block_copy does nothing -----------------------------------------------------------------

struct descriptor {
  unsigned long reserved, size;
  void (*copy)(void *, const void *);
  void (*dispose)(const void *);
};
struct block {
  void *isa;
  int flags, reserved;
  void (*invoke)(void *, ...);
  struct descriptor *descriptor;
};
enum { COUNT = 0xfffe, ONE = 2, ON_HEAP = 1 << 24, HAS_HELPERS = 1 << 25, GLOBAL = 1 << 28 };
void *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32], *_NSConcreteGlobalBlock[32];

void *_Block_copy(const void *from) {
  struct block *block = (struct block *)from;
  if (!block || (block->flags & GLOBAL)) return block;
  if (block->flags & ON_HEAP) {
    __sync_fetch_and_add(&block->flags, ONE);
    return block;
  }
  struct block *copy = malloc(block->descriptor->size);
  memcpy(copy, block, block->descriptor->size);
  copy->isa = _NSConcreteMallocBlock;
  copy->flags = (copy->flags & ~0xffff) | ON_HEAP | ONE;
  born(BLOCKS);
  if (copy->flags & HAS_HELPERS) block->descriptor->copy(copy, block);
  return copy;
}

void _Block_release(const void *given) {
  struct block *block = (struct block *)given;
  if (!block || !(block->flags & ON_HEAP) || (__sync_sub_and_fetch(&block->flags, ONE) & COUNT)) return;
  if (block->flags & HAS_HELPERS) block->descriptor->dispose(block);
  died(BLOCKS);
  free(block);
}

struct late {
  void *block;
  id object, error;
};
static void *late_main(void *given) {
  struct late *late = given;
  NSAutoreleasePool *pool = [NSAutoreleasePool new];
  usleep(10000);
  ((void (*)(void *, id, id))((struct block *)late->block)->invoke)(late->block, late->object, late->error);
  _Block_release(late->block);
  [late->object release];
  [late->error release];
  [pool drain];
  free(late);
  __sync_fetch_and_sub(&late_handlers, 1);
  return NULL;
}
// Calls a completion handler later, on another thread.
static void complete(void *block, id object, NSError *error) {
  struct late *late = malloc(sizeof *late);
  pthread_t thread;
  late->block = _Block_copy(block);
  late->object = [object retain];
  late->error = [error retain];
  __sync_fetch_and_add(&late_handlers, 1);
  must(!pthread_create(&thread, NULL, late_main, late), "a thread can be made");
  pthread_detach(thread);
}

// ---- Core Foundation and Core Video ---------------------------------------------------------------------------------

long kCFTypeDictionaryKeyCallBacks[6], kCFTypeDictionaryValueCallBacks[5];
NSString *kCVPixelBufferIOSurfacePropertiesKey = @"IOSurfaceProperties";
void *CFDictionaryCreate(void *allocator, const void **keys, const void **values, long count, void *k, void *v) {
  return [[NSDictionary alloc] initWithObjects:(id *)values forKeys:(id *)keys count:count];
}
void *CFRetain(void *object) { return [(id)object retain]; }
void CFRelease(void *object) { [(id)object release]; }

@interface StandinPixelBuffer : NSObject {
@public
  size_t width, height, row;
  uint16_t *pixels;
}
@end
@implementation StandinPixelBuffer
- (void)dealloc {
  free(pixels);
  died(BUFFERS);
  [super dealloc];
}
@end
int CVPixelBufferCreate(void *allocator, size_t width, size_t height, uint32_t format, NSDictionary *attributes,
                        StandinPixelBuffer **out) {
  id surface = [attributes objectForKey:kCVPixelBufferIOSurfacePropertiesKey];
  if (format != 'L00h' || ![surface isKindOfClass:[NSDictionary class]] || !width || !height) return -6661;
  StandinPixelBuffer *buffer = [StandinPixelBuffer new];
  born(BUFFERS);
  buffer->width = width;
  buffer->height = height;
  // Rows are padded, and what is between them is no number.
  buffer->row = (width + 32) / 32 * 32;
  buffer->pixels = malloc(buffer->row * height * 2);
  for (size_t i = 0; i < buffer->row * height; i++) buffer->pixels[i] = i % buffer->row < width ? 0 : 0x7e00;
  *out = buffer;
  return 0;
}
size_t CVPixelBufferGetBytesPerRow(StandinPixelBuffer *buffer) { return buffer->row * 2; }
size_t CVPixelBufferGetHeight(StandinPixelBuffer *buffer) { return buffer->height; }

// ---- arrays ---------------------------------------------------------------------------------------------------------

enum { FLOAT16 = 0x10010, FLOAT32 = 0x10020, INT32 = 0x20020 };

static float from_half(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                : exponent == 0 ? ldexpf(fraction, -24)
                                : ldexpf(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -value : value;
}
// The values that models give are float16's already.
static uint16_t to_half(float value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  float size = fabsf(value);
  if (isnan(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < ldexpf(1, -14)) return sign | (uint16_t)rintf(ldexpf(size, 24));
  int exponent;
  float fraction = frexpf(size, &exponent);
  return sign | (uint16_t)(((exponent + 14) << 10) + (int)rintf(ldexpf(fraction, 11)) - 1024);
}

@interface MLMultiArray : NSObject {
@public
  StandinPixelBuffer *buffer;
  void *bytes;
  NSInteger type;
  NSArray *shape;
  NSMutableArray *strides;
}
@end
@implementation MLMultiArray
- (void)lay:(NSArray *)given row:(NSInteger)row {
  shape = [given copy];
  strides = [NSMutableArray new];
  NSInteger stride = 1;
  for (NSInteger axis = [shape count] - 1; axis >= 0; axis--) {
    [strides insertObject:[NSNumber numberWithInteger:stride] atIndex:0];
    stride *= axis == (NSInteger)[shape count] - 1 ? row : [[shape objectAtIndex:axis] integerValue];
  }
}
- (NSInteger)count {
  NSInteger count = 1;
  for (NSUInteger axis = 0; axis < [shape count]; axis++) count *= [[shape objectAtIndex:axis] integerValue];
  return count;
}
- (id)initWithPixelBuffer:(StandinPixelBuffer *)given shape:(NSArray *)sizes {
  self = [super init];
  born(ARRAYS);
  buffer = [given retain];
  type = FLOAT16;
  [self lay:sizes row:given->row];
  must([[sizes lastObject] unsignedLongValue] == given->width, "a row of pixels is the last axis");
  must((size_t)[self count] == given->width * given->height, "a pixel buffer has the size of the array");
  return self;
}
- (id)initWithShape:(NSArray *)sizes dataType:(NSInteger)given error:(NSError **)error {
  // What throws inside `init` owns nothing yet.
  enum fault asked = fault("array");
  self = [super init];
  born(ARRAYS);
  type = given;
  [self lay:sizes row:[[sizes lastObject] integerValue]];
  bytes = calloc([self count], 4);
  if (asked != NONE) {
    *error = error_of(2, @"no memory");
    [self release];
    return nil;
  }
  return self;
}
- (void)dealloc {
  [buffer release];
  free(bytes);
  [shape release];
  [strides release];
  died(ARRAYS);
  [super dealloc];
}
- (NSInteger)dataType { return type; }
- (NSArray *)shape { return [[shape retain] autorelease]; }
- (NSArray *)strides { return [[strides retain] autorelease]; }
- (StandinPixelBuffer *)pixelBuffer { return [[buffer retain] autorelease]; }
- (void *)start { return buffer ? (void *)buffer->pixels : bytes; }
- (NSInteger)size { return buffer ? (NSInteger)(buffer->row * buffer->height * 2) : [self count] * (type == FLOAT16 ? 2 : 4); }
- (void)getBytesWithHandler:(void *)handler {
  ((void (*)(void *, void *, NSInteger))((struct block *)handler)->invoke)(handler, [self start], [self size]);
}
- (void)getMutableBytesWithHandler:(void *)handler {
  ((void (*)(void *, void *, NSInteger, id))((struct block *)handler)->invoke)(handler, [self start], [self size], strides);
}
- (NSInteger)place:(NSInteger)element {
  NSInteger place = 0;
  for (NSInteger axis = [shape count] - 1; axis >= 0; axis--) {
    NSInteger size = [[shape objectAtIndex:axis] integerValue];
    place += element % size * [[strides objectAtIndex:axis] integerValue];
    element /= size;
  }
  return place;
}
- (float)valueAt:(NSInteger)element {
  NSInteger place = [self place:element];
  void *start = [self start];
  return type == FLOAT16 ? from_half(((uint16_t *)start)[place])
         : type == FLOAT32 ? ((float *)start)[place]
                           : ((int32_t *)start)[place];
}
- (void)setValue:(float)value at:(NSInteger)element {
  NSInteger place = [self place:element];
  void *start = [self start];
  if (type == FLOAT16) ((uint16_t *)start)[place] = to_half(value);
  else if (type == FLOAT32) ((float *)start)[place] = value;
  else ((int32_t *)start)[place] = value;
}
@end

// ---- features -------------------------------------------------------------------------------------------------------

@interface MLFeatureValue : NSObject {
@public
  MLMultiArray *array;
}
@end
@implementation MLFeatureValue
+ (id)featureValueWithMultiArray:(MLMultiArray *)given {
  MLFeatureValue *value = [[self new] autorelease];
  born(VALUES);
  value->array = [given retain];
  return value;
}
- (MLMultiArray *)multiArrayValue { return [[array retain] autorelease]; }
- (void)dealloc {
  [array release];
  died(VALUES);
  [super dealloc];
}
@end

@interface MLDictionaryFeatureProvider : NSObject {
@public
  NSDictionary *values;
}
@end
@implementation MLDictionaryFeatureProvider
- (id)initWithDictionary:(NSDictionary *)given error:(NSError **)error {
  enum fault asked = error ? fault("input") : NONE;
  self = [super init];
  born(FEATURES);
  values = [given copy];
  NSEnumerator *all = [values objectEnumerator];
  id value;
  while ((value = [all nextObject])) must([value isKindOfClass:[MLFeatureValue class]], "inputs are feature values");
  if (asked != NONE) {
    *error = error_of(1, @"the inputs are refused");
    [self release];
    return nil;
  }
  return self;
}
- (void)dealloc {
  [values release];
  died(FEATURES);
  [super dealloc];
}
- (MLFeatureValue *)featureValueForName:(NSString *)name { return [[[values objectForKey:name] retain] autorelease]; }
@end

@interface MLPredictionOptions : NSObject {
@public
  NSDictionary *backings;
}
@end
@implementation MLPredictionOptions
- (id)init {
  self = [super init];
  born(OPTIONS);
  return self;
}
- (void)setOutputBackings:(NSDictionary *)given {
  [backings release];
  backings = [given copy];
}
- (void)dealloc {
  [backings release];
  died(OPTIONS);
  [super dealloc];
}
@end

@interface MLModelConfiguration : NSObject {
@public
  NSInteger units;
  NSString *function;
}
@end
@implementation MLModelConfiguration
- (id)init {
  self = [super init];
  born(CONFIGURATIONS);
  units = 2;
  return self;
}
- (void)setComputeUnits:(NSInteger)given { units = given; }
- (void)setFunctionName:(NSString *)given {
  [function release];
  function = [given copy];
}
- (void)dealloc {
  [function release];
  died(CONFIGURATIONS);
  [super dealloc];
}
@end

// ---- models: what they compute is asked of Rust ---------------------------------------------------------------------

void *standin_run(const char *compiled, const char *function, void *state);
void standin_input(void *run, const char *name, long rank, const long *shape, const float *values, int integers);
const char *standin_go(void *run);
int standin_output(void *run, long index, const char **name, long *rank, const long **shape, const float **values);
void standin_end(void *run);
void standin_forget(void *state);
int standin_op(const char *compiled, const char *function, long index, char *operator, char *output, long size);

@interface MLState : NSObject
@end
@implementation MLState
- (id)init {
  self = [super init];
  born(STATES);
  return self;
}
- (void)dealloc {
  standin_forget(self);
  died(STATES);
  [super dealloc];
}
@end

@interface MLModel : NSObject {
  NSString *compiled, *function;
}
@end
@implementation MLModel
+ (void)compileModelAtURL:(NSURL *)url completionHandler:(void *)handler {
  NSFileManager *files = [NSFileManager defaultManager];
  NSString *package = [url path];
  enum fault asked = fault("compile");
  if (asked != NONE || ![files fileExistsAtPath:package]) {
    complete(handler, nil, asked == NOTHING ? nil : error_of(3, @"the package cannot be compiled"));
    return;
  }
  NSString *folder = [NSTemporaryDirectory()
      stringByAppendingPathComponent:[NSString stringWithFormat:@"standin-%d-%p.mlmodelc", getpid(), handler]];
  must([files createDirectoryAtPath:folder withIntermediateDirectories:YES attributes:nil error:NULL], "a folder can be made");
  must([files copyPath:package toPath:[folder stringByAppendingPathComponent:@"model.mlpackage"] handler:nil],
       "a package can be copied");
  complete(handler, [NSURL fileURLWithPath:folder], nil);
}
+ (id)modelWithContentsOfURL:(NSURL *)url configuration:(MLModelConfiguration *)configuration error:(NSError **)error {
  if (fault("load") != NONE) {
    *error = PLAN_ERROR;
    return nil;
  }
  MLModel *model = [[self new] autorelease];
  born(MODELS);
  model->compiled = [[url path] copy];
  model->function = [configuration->function ? configuration->function : @"main" copy];
  note("load %s units=%ld\n", [model->function UTF8String], (long)configuration->units);
  return model;
}
- (MLState *)newState {
  fault("state");
  return [MLState new];
}
- (id)predictionFromFeatures:(MLDictionaryFeatureProvider *)features
                  usingState:(MLState *)state
                     options:(MLPredictionOptions *)options
                       error:(NSError **)error {
  must([state isKindOfClass:[MLState class]], "a prediction has a state");
  if (fault("predict") != NONE) {
    *error = error_of(0, @"Unable to compute the prediction using a neural network model.");
    return nil;
  }
  void *run = standin_run([compiled UTF8String], [function UTF8String], state);
  NSEnumerator *names = [features->values keyEnumerator];
  NSString *name;
  while ((name = [names nextObject])) {
    MLMultiArray *array = ((MLFeatureValue *)[features->values objectForKey:name])->array;
    long rank = [array->shape count], count = [array count], shape[8];
    for (long axis = 0; axis < rank; axis++) shape[axis] = [[array->shape objectAtIndex:axis] integerValue];
    float *values = malloc(count * sizeof *values);
    for (long i = 0; i < count; i++) values[i] = [array valueAt:i];
    standin_input(run, [name UTF8String], rank, shape, values, array->type == INT32);
    free(values);
    note("input %s %s %p\n", [function UTF8String], [name UTF8String], array);
  }
  const char *why = standin_go(run);
  if (why) {
    *error = error_of(1, [NSString stringWithUTF8String:why]);
    standin_end(run);
    return nil;
  }
  NSMutableDictionary *outputs = [NSMutableDictionary dictionary];
  const char *output;
  const long *sizes;
  const float *values;
  long rank;
  for (long index = 0; standin_output(run, index, &output, &rank, &sizes, &values); index++) {
    NSMutableArray *shape = [NSMutableArray array];
    for (long axis = 0; axis < rank; axis++) [shape addObject:[NSNumber numberWithInteger:sizes[axis]]];
    NSString *key = [NSString stringWithUTF8String:output];
    MLMultiArray *array = [options->backings objectForKey:key];
    if (array) must([array->shape isEqual:shape], "a backing has the shape of its output");
    if (!array || getenv("STANDIN_DECLINE"))
      array = [[[MLMultiArray alloc] initWithShape:shape dataType:FLOAT16 error:NULL] autorelease];
    NSEnumerator *given = [features->values objectEnumerator];
    MLFeatureValue *value;
    while ((value = [given nextObject])) must(value->array != array, "no array is input and output of a call");
    for (long i = 0, count = [array count]; i < count; i++) [array setValue:values[i] at:i];
    note("output %s %s %p\n", [function UTF8String], output, array);
    [outputs setObject:[MLFeatureValue featureValueWithMultiArray:array] forKey:key];
  }
  standin_end(run);
  return [[[MLDictionaryFeatureProvider alloc] initWithDictionary:outputs error:NULL] autorelease];
}
- (void)dealloc {
  [compiled release];
  [function release];
  died(MODELS);
  [super dealloc];
}
@end

// ---- devices and the compute plan -----------------------------------------------------------------------------------

@interface MLCPUComputeDevice : NSObject
@end
@implementation MLCPUComputeDevice
@end
@interface MLGPUComputeDevice : NSObject
@end
@implementation MLGPUComputeDevice
@end
@interface MLNeuralEngineComputeDevice : NSObject
@end
@implementation MLNeuralEngineComputeDevice
@end
NSArray *MLAllComputeDevices(void) {
  return [NSArray arrayWithObjects:[[MLCPUComputeDevice new] autorelease], [[MLNeuralEngineComputeDevice new] autorelease], nil];
}

// Every getter of a plan answers from a dictionary.
@interface StandinNode : NSObject {
@public
  NSDictionary *answers;
}
@end
@implementation StandinNode
+ (id)node:(NSString *)key, ... {
  StandinNode *node = [[self new] autorelease];
  born(NODES);
  NSMutableDictionary *answers = [NSMutableDictionary dictionary];
  va_list rest;
  va_start(rest, key);
  for (NSString *next = key; next; next = va_arg(rest, NSString *)) [answers setObject:va_arg(rest, id) forKey:next];
  va_end(rest);
  node->answers = [answers copy];
  return node;
}
- (void)dealloc {
  [answers release];
  died(NODES);
  [super dealloc];
}
@end
#define GET(name) \
  -(id)name { return [answers objectForKey:@ #name]; }
#define NODE(class, ...)                                                                                               \
  @interface class : StandinNode                                                                                       \
  @end                                                                                                                 \
  @implementation class                                                                                                \
  __VA_ARGS__                                                                                                          \
  @end
NODE(MLModelStructureProgramNamedValueType, GET(name))
NODE(MLModelStructureProgramOperation, GET(operatorName) GET(outputs) GET(blocks))
NODE(MLModelStructureProgramBlock, GET(operations))
NODE(MLModelStructureProgramFunction, GET(block))
NODE(MLModelStructureProgram, GET(functions))
NODE(MLModelStructure, GET(program))
NODE(MLComputePlanDeviceUsage, GET(preferredComputeDevice) GET(supportedComputeDevices))
NODE(MLComputePlanCost, -(double)weight { return [[answers objectForKey:@"weight"] doubleValue]; })

@interface MLComputePlan : StandinNode
@end
@implementation MLComputePlan
GET(modelStructure)
+ (void)loadContentsOfURL:(NSURL *)url configuration:(MLModelConfiguration *)configuration completionHandler:(void *)handler {
  enum fault asked = fault("plan");
  if (asked != NONE) {
    complete(handler, nil, asked == ERROR ? PLAN_ERROR : nil);
    return;
  }
  NSString *name = configuration->function ? configuration->function : @"main";
  NSMutableArray *operations = [NSMutableArray array];
  char operator[64], output[256];
  for (long i = 0; standin_op([[url path] UTF8String], [name UTF8String], i, operator, output, sizeof output); i++) {
    id value = [MLModelStructureProgramNamedValueType node:@"name", [NSString stringWithUTF8String:output], nil];
    NSString *kind = [NSString stringWithFormat:@"ios18.%s", operator];
    [operations addObject:[MLModelStructureProgramOperation node:@"operatorName", kind, @"outputs",
                                                                 [NSArray arrayWithObject:value], @"blocks", [NSArray array], nil]];
  }
  id block = [MLModelStructureProgramBlock node:@"operations", operations, nil];
  id function = [MLModelStructureProgramFunction node:@"block", block, nil];
  id functions = [NSDictionary dictionaryWithObject:function forKey:name];
  id structure = [MLModelStructure node:@"program", [MLModelStructureProgram node:@"functions", functions, nil], nil];
  complete(handler, [MLComputePlan node:@"modelStructure", structure, nil], nil);
}
static BOOL constant(MLModelStructureProgramOperation *op) {
  return [[op operatorName] hasPrefix:@"ios18.const"];
}
- (id)computeDeviceUsageForMLProgramOperation:(MLModelStructureProgramOperation *)op {
  if (constant(op)) return nil;
  id ane = [[MLNeuralEngineComputeDevice new] autorelease], cpu = [[MLCPUComputeDevice new] autorelease];
  const char *listed = getenv("STANDIN_CPU");
  NSArray *kinds = [[NSString stringWithUTF8String:listed ? listed : ""] componentsSeparatedByString:@","];
  BOOL on_cpu = [kinds containsObject:[[op operatorName] substringFromIndex:6]];
  return [MLComputePlanDeviceUsage node:@"preferredComputeDevice", on_cpu ? cpu : ane, @"supportedComputeDevices",
                                        [NSArray arrayWithObjects:cpu, on_cpu ? nil : ane, nil], nil];
}
- (id)estimatedCostOfMLProgramOperation:(MLModelStructureProgramOperation *)op {
  return constant(op) ? nil : [MLComputePlanCost node:@"weight", [NSNumber numberWithDouble:0.01], nil];
}
@end
